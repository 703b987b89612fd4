// The part of the run that the timeline was asked about, and who wants to know.

export class TimeRange {
  /** Nanoseconds from the beginning of the run; null for all of it. */
  chosen: { from: number; to: number } | null = null;
  /** Whether it is still being dragged. */
  moving = false;
  private listeners: (() => void)[] = [];

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  choose(from: number, to: number, moving = false): void {
    this.moving = moving;
    this.chosen = { from: Math.min(from, to), to: Math.max(from, to) };
    for (const listener of this.listeners) listener();
  }

  clear(): void {
    if (!this.chosen) return;
    this.chosen = null;
    for (const listener of this.listeners) listener();
  }
}
