// Requests that the page answers itself: workers run the models, so that the page stays responsive.

/** The request was rejected. */
export class RequestError extends Error {}

/** The host of this folder did not respond. */
export class ServerUnavailable extends Error {
  constructor() { super("The server does not respond."); }
}

const ROOT = new URL("../", import.meta.url);

const beingLoaded = [];

/** Says which networks are being loaded, as that takes a while on a slow connection. */
function showLoading({ loading, loaded }) {
  if (loading) beingLoaded.push(loading);
  else beingLoaded.splice(beingLoaded.findIndex(({ model, bytes }) => model === loaded.model && bytes === loaded.bytes), 1);
  const note = document.getElementById("loading");
  note.hidden = beingLoaded.length === 0;
  const named = beingLoaded.map(({ model, bytes }) => `${model}, ${(bytes / 1e6).toFixed(1)} MB`);
  if (!note.hidden) note.textContent = `Loading ${named.join("; ")} …`;
}

/** A worker that is started by its first request; `ask(path, body)` resolves with its answer. */
function worker(file) {
  let started = null;
  let count = 0;
  const waiting = new Map();
  const settle = (id, act) => {
    act(waiting.get(id));
    waiting.delete(id);
  };
  function start() {
    started = new Worker(new URL(file, ROOT), { type: "module" });
    started.addEventListener("message", ({ data }) => {
      if (data.id === undefined) return showLoading(data);
      settle(data.id, ({ resolve, reject }) => {
        if (data.unavailable) reject(new ServerUnavailable());
        else if (data.error !== undefined) reject(new RequestError(data.error));
        else resolve(data.answer);
      });
    });
    started.addEventListener("error", (event) => {      // one of its files could not be loaded
      event.preventDefault();
      started.terminate();
      started = null;
      for (const id of [...waiting.keys()]) settle(id, ({ reject }) => reject(new ServerUnavailable()));
    });
  }
  return (path, body) => new Promise((resolve, reject) => {
    if (started === null) start();
    count += 1;
    waiting.set(count, { resolve, reject });
    started.postMessage({ id: count, path, body });
  });
}

const models = worker("answers/worker.js");
const shapes = worker("answers/shapes-worker.js");      // of its own, as it needs no model

async function described() {
  try {
    const response = await fetch(new URL("models/models.json", ROOT));
    if (response.ok) return await response.json();
  } catch {
    // The connection broke, or never came about.
  }
  throw new ServerUnavailable();
}

/** Answers a request like the server. */
export async function send(path, body) {
  if (["healthz", "api/model"].includes(path)) return described();
  return (path === "api/shapes" ? shapes : models)(path, body);
}
