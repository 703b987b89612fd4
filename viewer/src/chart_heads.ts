// The plain data of the charts, as `page_layers.py`, `page_memory.py` and `page_gradients.py` write it.

export interface LayersHead {
  /** Modules in depth order. */
  paths: string[];
  classes: string[];
  depths: number[];
  columns: [first: number, last: number][];
  ranks: number[];
  /** Whether any statistics were taken. */
  taken: boolean;
}

export interface MemoryHead {
  kinds: string[];
  devices: DeviceHead[];
  /** How many of the largest storages each moment lists. */
  largest: number;
  /** What storages are, and the tensors on them. */
  texts: string[];
  looks: string[];
  notes: string[];
}

export interface DeviceHead {
  rank: number;
  device: string;
  /** The peak: its bytes, and the event after which it is; -1 where that was left out. */
  bytes: number;
  row: number;
  where: string;
  step: number;
  advice: string[];
  points: number;
}

export type GradientsHead = { why: string } & Partial<{
  /** Parameters in depth order. */
  names: string[];
  steps: number[];
  left_out: number;
  ranks: number[];
  updates: boolean;
}>;
