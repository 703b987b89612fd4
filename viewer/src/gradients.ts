// Gradient flow: a bar per parameter in depth order, on a log scale, for one step; dots are the size
// of the update relative to the weight.

import { percent, power } from "./chart_text.ts";
import { Chart, picker, swatch } from "./chart.ts";
import type { GradientsHead } from "./chart_heads.ts";
import { button, h, on, replace, stop } from "./dom.ts";
import { number, whole } from "./format.ts";
import { ceil, floor, log10, max, min } from "./maths.ts";
import type { View } from "./state.ts";
import { fitted, hatch, INF, NAN, type Pen } from "./surface.ts";

type Figure = "rms" | "norm" | "max" | "zeros";
const FIGURES: [Figure, string][] = [["rms", "RMS"], ["norm", "norm"], ["max", "|max|"], ["zeros", "zeros %"]];

const LEFT = 58;
const TOP = 10;
const BOTTOM = 18;
/** A usual size of updates. */
const USUAL = 1e-3;

type Whole = Required<GradientsHead>;

export class Gradients extends Chart {
  private readonly head: Whole;
  private readonly stepText = h("output.step", null);
  private readonly slider = h("input", { type: "range", min: 0, step: 1, label: "Step" });
  private figure: Figure = "rms";
  private step = 0;
  private rank = 0;
  private cursor = -1;
  /** Entries of the step, by parameter; -1 where there is none. */
  private entries = new Int32Array(0);
  /** Smallest and largest power of ten, over all steps, of the figure and of the updates. */
  private bounds: [number, number] = [-1, 0];
  private ratios: [number, number] = [-4, -2];

  constructor(view: View) {
    super(view, "gradients", "Gradients by depth: left and right move, Enter goes to the gradient, up and down change the step");
    this.head = view.trace.head.gradients as Whole;
    if (this.head.why) {
      this.nothing(this.head.why);
      return;
    }
    this.rank = this.head.ranks[0] ?? 0;
    this.step = this.head.steps.length - 1;
    this.buildTools();
    this.listen();
    this.measure();
    this.show(this.step);
    this.follow();
    view.onSelect(() => this.follow());
  }

  private buildTools(): void {
    const { ranks, steps } = this.head;
    this.slider.max = String(steps.length - 1);
    on(this.slider, "input", () => this.show(Number(this.slider.value)));
    replace(this.tools, this.stepText,
      steps.length > 1 && [button("‹", "The step before", () => this.show(this.step - 1)), this.slider, button("›", "The next step", () => this.show(this.step + 1))],
      picker("Figure", FIGURES, this.figure, (figure) => {
        this.figure = figure;
        this.measure();
        this.show(this.step);
      }),
      picker("Rank", ranks.map((rank) => [rank, `rank ${rank}`]), this.rank, (rank) => {
        this.rank = rank;
        this.show(this.step);
      }));
  }

  /** Find the ends of both scales over all steps, so that steps can be compared. */
  private measure(): void {
    const [values, weight, update] = [this.figure, "weight", "update"].map((name) => this.column(name));
    const ends = (each: (i: number) => number, fallback: [number, number]): [number, number] => {
      let [low, high] = [Infinity, -Infinity];
      for (let i = 0; i < values.length; i++) {
        const value = each(i);
        if (!(value > 0) || !Number.isFinite(value) || value > 3e38) continue;
        low = min(low, value);
        high = max(high, value);
      }
      return high > 0 ? [floor(log10(low)), max(ceil(log10(high)), floor(log10(low)) + 1)] : fallback;
    };
    this.bounds = ends((i) => values[i], [-1, 0]);
    this.ratios = ends((i) => update[i] / weight[i], [-4, -2]);
  }

  private show(step: number): void {
    const { steps, names } = this.head;
    this.step = max(0, min(steps.length - 1, step));
    this.slider.value = String(this.step);
    this.stepText.textContent = `step ${steps[this.step]}`;
    this.entries = new Int32Array(names.length).fill(-1);
    const [name, at, rank] = ["name", "step", "rank"].map((column) => this.column(column));
    for (let i = 0; i < name.length; i++) if (at[i] === this.step && rank[i] === this.rank) this.entries[name[i]] = i;
    replace(this.legend, h("b", null, `gradient ${FIGURES.find(([one]) => one === this.figure)![1]}`), h("span.dim", null, `${names.length} parameters in depth order${this.figure === "zeros" ? "" : ", log scale"}`),
      swatch("weights", "weight"), swatch("biases", "bias"), swatch("NaN", "nan"), swatch("Inf", "inf"), swatch("not taken", "hatched"), swatch("exactly 0", "zero"),
      this.head.updates ? [swatch("|update| / |weight|, scale at the right", "dot"), h("span.dim", null, `dashed: ${number(USUAL)}, a usual size`)] : h("span.dim", null, "capture=[\"**:update\"] adds |update| / |weight|"),
      this.head.left_out > 0 && h("span.dim", null, `${whole(this.head.left_out)} steps left out`));
    this.surface.draw();
  }

  /** Show the step of what is selected. */
  private follow(): void {
    const { row, trace } = this.view;
    const at = row < 0 ? -1 : this.head.steps.indexOf(trace.step[row]);
    if (at >= 0 && at !== this.step) this.show(at);
    else this.surface.draw();
  }

  private get wide(): number {
    return max(3, min(40, (this.surface.width - LEFT - this.right) / this.head.names.length));
  }

  private get right(): number {
    return this.head.updates ? 46 : 12;
  }

  private get tall(): number {
    return this.surface.height - TOP - BOTTOM;
  }

  private y(value: number): number {
    if (this.figure === "zeros") return TOP + (1 - value) * this.tall;
    const [low, high] = this.bounds;
    return TOP + (1 - (log10(value) - low) / (high - low)) * this.tall;
  }

  private ratioY(ratio: number): number {
    const [low, high] = this.ratios;
    return TOP + (1 - (log10(ratio) - low) / (high - low)) * this.tall;
  }

  protected override paint(pen: Pen): void {
    const { surface, head } = this;
    const { wide } = this;
    surface.extent(LEFT + wide * head.names.length + this.right, 0);
    this.grid(pen);
    this.groups(pen, wide);
    const first = max(0, floor((surface.left - LEFT) / wide));
    const last = min(head.names.length, ceil((surface.left + surface.width - LEFT) / wide));
    for (let at = first; at < last; at++) this.bar(pen, at, LEFT + at * wide - surface.left, wide);
    if (head.updates) for (let at = first; at < last; at++) this.dot(pen, at, LEFT + at * wide - surface.left, wide);
    this.axes(pen);
    if (this.cursor >= 0) {
      pen.strokeStyle = surface.colour("accent");
      pen.lineWidth = 1.5;
      pen.strokeRect(LEFT + this.cursor * wide - surface.left - 0.5, TOP - 2, wide, this.tall + 3);
    }
  }

  private marks(): [text: string, y: number][] {
    if (this.figure === "zeros") return [0, 0.5, 1].map((share) => [percent(share), this.y(share)]);
    const [low, high] = this.bounds;
    const each = max(1, ceil((high - low) / max(1, this.tall / 26)));
    const found: [string, number][] = [];
    for (let at = low; at <= high; at += each) found.push([power(at), this.y(10 ** at)]);
    return found;
  }

  private grid(pen: Pen): void {
    pen.fillStyle = this.surface.colour("line");
    for (const [, y] of this.marks()) pen.fillRect(LEFT, y, this.surface.width, 1);
  }

  private axes(pen: Pen): void {
    const { surface } = this;
    pen.fillStyle = surface.colour("bg");
    pen.fillRect(0, 0, LEFT - 2, surface.height);
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.fillStyle = surface.colour("dim");
    for (const [text, y] of this.marks()) pen.fillText(text, LEFT - 6, max(6, y));
    pen.textAlign = "left";
    if (!this.head.updates) return;
    const x = surface.width - this.right;
    pen.fillStyle = surface.colour("bg");
    pen.fillRect(x, 0, this.right, surface.height);
    pen.fillStyle = surface.colour("dim");
    const [low, high] = this.ratios;
    const each = max(1, ceil((high - low) / max(1, this.tall / 26)));
    for (let at = low; at <= high; at += each) pen.fillText(power(at), x + 6, max(6, this.ratioY(10 ** at)));
    if (USUAL < 10 ** low || USUAL > 10 ** high) return;
    pen.strokeStyle = surface.colour("dim");
    pen.lineWidth = 1;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(LEFT, this.ratioY(USUAL));
    pen.lineTo(x, this.ratioY(USUAL));
    pen.stroke();
    pen.setLineDash([]);
  }

  /** Names of layers below their parameters: the path up to a number, else its first name. */
  private groups(pen: Pen, wide: number): void {
    const { surface, head } = this;
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "middle";
    let from = 0;
    for (let at = 1; at <= head.names.length; at++) {
      const group = layer(head.names[from]);
      if (at < head.names.length && layer(head.names[at]) === group) continue;
      const left = LEFT + from * wide - surface.left;
      const right = LEFT + at * wide - surface.left;
      pen.fillStyle = surface.colour("line");
      pen.fillRect(right - 0.5, TOP, 1, this.tall + BOTTOM);
      pen.fillStyle = surface.colour("dim");
      const text = fitted(pen, group, right - left - 4);
      if (text.length > 1 || text === group) pen.fillText(text, left + 2, surface.height - BOTTOM / 2 + 1);
      from = at;
    }
  }

  private bar(pen: Pen, at: number, x: number, wide: number): void {
    const { surface } = this;
    const entry = this.entries[at];
    if (entry < 0) return;
    const bottom = TOP + this.tall;
    const room = max(1, wide - (wide > 5 ? 2 : 1));
    const bad = this.column("nan")[entry] > 0 ? NAN : this.column("inf")[entry] > 0 ? INF : "";
    const value = this.column(this.figure)[entry];
    if (!this.column("taken")[entry]) return hatch(pen, x, TOP, room, this.tall, surface.colour("dim"));
    if (bad) {
      pen.fillStyle = bad;
      pen.fillRect(x, TOP, room, this.tall);
      pen.save();
      pen.translate(x + room / 2, bottom - 4);
      pen.rotate(-Math.PI / 2);
      pen.fillStyle = surface.ink(bad);
      pen.font = "600 10px system-ui, sans-serif";
      if (room > 9) pen.fillText(bad === NAN ? "NaN" : "Inf", 0, 0.5);
      return pen.restore();
    }
    if (!(value > 0) && this.figure !== "zeros") {
      // On a log scale there is no 0: a flat mark.
      pen.fillStyle = surface.colour("warn");
      return pen.fillRect(x, bottom - 4, room, 4);
    }
    pen.fillStyle = surface.colour(/bias$/.test(this.head.names[at]) ? "m0" : "matmul");
    const y = this.y(value);
    pen.fillRect(x, y, room, max(1, bottom - y));
  }

  private dot(pen: Pen, at: number, x: number, wide: number): void {
    const entry = this.entries[at];
    const ratio = entry < 0 ? NaN : this.column("update")[entry] / this.column("weight")[entry];
    if (!(ratio > 0) || !Number.isFinite(ratio)) return;
    pen.fillStyle = this.surface.colour("update");
    pen.strokeStyle = this.surface.colour("bg");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.arc(x + wide / 2, this.ratioY(ratio), max(2, min(4, wide / 3)), 0, 7);
    pen.fill();
    pen.stroke();
  }

  private figures(at: number): string[] {
    const entry = this.entries[at];
    const when = `step ${this.head.steps[this.step]}`;
    if (entry < 0) return [this.head.names[at], `${when}: no gradient`];
    const of = (name: string) => this.column(name)[entry];
    if (!of("taken")) return [this.head.names[at], `${when}: statistics not taken`];
    const ratio = of("update") / of("weight");
    return [
      this.head.names[at], when, `gradient RMS ${number(of("rms"))} · norm ${number(of("norm"))} · |max| ${number(of("max"))}`,
      `zeros ${percent(of("zeros"))}${of("nan") || of("inf") ? ` · NaN ${percent(of("nan"))} · Inf ${percent(of("inf"))}` : ""}`,
      `weight norm ${number(of("weight"))}${ratio >= 0 ? ` · |update| / |weight| ${number(ratio)}` : ""}`,
    ];
  }

  private point(at: number, x: number, y: number): void {
    this.cursor = at;
    this.tell(x, y, this.figures(at));
    this.surface.draw();
  }

  private go(at: number): void {
    const event = this.entries[at] < 0 ? 0 : this.column("event")[this.entries[at]];
    if (event) this.view.choose(event - 1, "gradients");
  }

  private listen(): void {
    const { canvas } = this.surface;
    const near = (x: number) => floor((x + this.surface.left - LEFT) / this.wide);
    on(canvas, "pointermove", (event) => {
      const [x, y] = this.surface.at(event);
      const at = near(x);
      if (x >= LEFT && at >= 0 && at < this.head.names.length) this.point(at, x, y);
      else this.surface.hideTip();
    });
    on(canvas, "pointerleave", () => {
      this.cursor = -1;
      this.surface.draw();
    });
    on(canvas, "click", (event) => {
      const at = near(this.surface.at(event)[0]);
      if (at >= 0 && at < this.head.names.length) this.go(at);
    });
    on(canvas, "keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
      const steps = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (by) this.move(by);
      else if (steps) {
        this.show(this.step + steps);
        if (this.cursor >= 0) this.move(0);
      } else if (event.key === "Enter" && this.cursor >= 0) this.go(this.cursor);
      else return;
      stop(event);
    });
  }

  private move(by: number): void {
    const at = max(0, min(this.head.names.length - 1, this.cursor + by));
    this.surface.reveal(LEFT + at * this.wide, 0, this.wide, 1, LEFT, 0);
    this.point(at, LEFT + (at + 0.5) * this.wide - this.surface.left, this.tall / 2);
  }
}

/** `h.3` of `h.3.mlp.fc.weight`, `head` of `head.weight`. */
function layer(name: string): string {
  const names = name.split(".");
  const number = names.findIndex((one) => /^\d+$/.test(one));
  return number >= 0 ? names.slice(0, number + 1).join(".") : names[0];
}
