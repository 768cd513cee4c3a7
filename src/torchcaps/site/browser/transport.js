// Requests that the page answers itself: workers run the models, so that the page stays responsive.

/** The request was rejected. */
export class RequestError extends Error {}

/** The host of this folder did not respond. */
export class ServerUnavailable extends Error {
  constructor() { super("The server does not respond."); }
}

const ROOT = new URL("../", import.meta.url);

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
    started.addEventListener("message", ({ data: { id, answer, error, unavailable } }) => settle(id, ({ resolve, reject }) => {
      if (unavailable) reject(new ServerUnavailable());
      else if (error !== undefined) reject(new RequestError(error));
      else resolve(answer);
    }));
    started.addEventListener("error", () => {      // one of its files could not be loaded
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
  let response;
  try {
    response = await fetch(new URL("models/models.json", ROOT));
  } catch {
    throw new ServerUnavailable();
  }
  if (!response.ok) throw new ServerUnavailable();
  return response.json();
}

/** Answers a request like the server. */
export async function send(path, body) {
  if (["healthz", "api/model"].includes(path)) return described();
  return (path === "api/shapes" ? shapes : models)(path, body);
}
