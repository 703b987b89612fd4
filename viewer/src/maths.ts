// Functions used all over, by their bare names: shorter to read and, bundled, far shorter to ship.

export const { abs, ceil, floor, log10, max, min, round } = Math;
