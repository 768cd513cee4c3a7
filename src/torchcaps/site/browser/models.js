// The models: their descriptions, and their programs in ONNX Runtime, each loaded when it is first needed.

import { InferenceSession, env, Tensor } from "../runtime/ort.wasm.bundle.min.js";

import { image } from "./pictures.js";
import { UserError } from "./prepare.js";

const ROOT = new URL("../", import.meta.url);
env.wasm.numThreads = 1;      // threads need headers that static hosts do not send
env.wasm.wasmPaths = { wasm: new URL("runtime/ort-wasm-simd-threaded.wasm", ROOT).href };

/** The host of the folder did not respond. */
export class HostUnavailable extends Error {
  name = "HostUnavailable";
}

/** A file of the folder, read by `read(response)`. */
async function fetched(path, read) {
  try {
    const response = await fetch(new URL(path, ROOT));
    if (response.ok) return await read(response);
  } catch {
    // The connection broke, or never came about.
  }
  throw new HostUnavailable(path);
}

/** A promise that `make` returns, made once; it is made again if it failed. */
function once(make) {
  let made = null;
  return () => {
    made ??= make().catch((error) => { made = null; throw error; });
    return made;
  };
}

const bytesOf = (path) => fetched(path, (response) => response.arrayBuffer());
const jsonOf = (path) => fetched(path, (response) => response.json());
export const constants = once(() => jsonOf("models/programs.json"));

/** Tells the page what is being loaded. */
async function loading(what, load) {
  postMessage({ loading: what });
  try {
    return await load();
  } finally {
    postMessage({ loaded: what });
  }
}

let last = Promise.resolve();

/** Runs one program at a time: the runtime has one thread, and requests take turns between runs. */
function inTurn(run) {
  const turn = last.then(run);
  last = turn.catch(() => {});
  return turn;
}

class Model {
  constructor(described, { folder, sizes, ...own }) {
    Object.assign(this, described, own);
    this.programs = Object.fromEntries(Object.entries(sizes).map(([name, bytes]) => [name, once(() =>
      loading({ model: this.name, bytes }, async () =>
        InferenceSession.create(await bytesOf(`models/${folder}/${name}.onnx`), { executionProviders: ["wasm"] })))]));
    this.exampleData = once(async () => new Float32Array(await bytesOf(`models/${folder}/examples.bin`)));
  }

  /** Runs a program on arrays `{ name: [data, dims] }`; the result has `{ dims, data }` of each named output. */
  async run(program, inputs, outputs) {
    const session = await this.programs[program]();
    const feeds = Object.fromEntries(Object.entries(inputs).map(([name, [data, dims]]) => [name, new Tensor("float32", data, dims)]));
    return inTurn(() => session.run(feeds, outputs));
  }

  /** Runs `encode` on images, and for pose capsules on views, by default those that the model searches. */
  encode(images, outputs, views = this.views) {
    const { channels, height, width } = this.image;
    const size = channels * height * width;
    const data = new Float32Array(images.length * size);
    images.forEach((each, i) => data.set(each.data, i * size));
    const inputs = { images: [data, [images.length, channels, height, width]] };
    if (views) inputs.views = [Float32Array.from(views.flat(2)), [views.length, 2, 2]];
    return this.run("encode", inputs, outputs);
  }

  /** Draws capsules, each of one class; of pose capsules upright. */
  async decode(capsules, classes) {
    const [J, D] = [this.classes.length, this.pose];
    const data = new Float32Array(capsules.length * J * D);
    capsules.forEach((capsule, i) => data.set(capsule, (i * J + classes[i]) * D));
    const { pictures } = await this.run("decode", { capsules: [data, [capsules.length, J, D]] }, ["pictures"]);
    return pictures;
  }

  async example(index) {
    const { images } = this.examples;
    if (!(index < images.length)) throw new UserError(`example: ${this.name} has ${images.length} examples, numbered from 0`);
    const { channels, height, width } = this.image;
    const size = channels * height * width;
    return image(channels, height, width, (await this.exampleData()).slice(index * size, (index + 1) * size));
  }
}

const all = once(async () => {
  const [{ default: main, models }, { programs }] = await Promise.all([jsonOf("models/models.json"), constants()]);
  return { main, models: Object.fromEntries(models.map((each) => [each.name, new Model(each, programs[each.name])])) };
});

/** The model of a name, by default the main one. */
export async function modelOf(name) {
  const { main, models } = await all();
  const found = models[name ?? main];
  if (found === undefined) throw new UserError(`model: there is no model called ${name}`);
  return found;
}

/** The model to compare with, if it takes images of the same size. */
export async function comparisonOf(model) {
  const { models } = await all();
  const same = (other) => ["channels", "height", "width"].every((side) => other.image[side] === model.image[side]);
  return Object.values(models).find((other) => other.role === "comparison" && other !== model && same(other)) ?? null;
}
