// Requests to the API: at most one pending per panel and route, newer requests replace waiting ones, and the page waits
// for a server that does not respond.

import { RequestError, send, ServerUnavailable } from "./transport.js";

export { RequestError, ServerUnavailable };

const STROKE_INTERVAL_MS = 60;      // between two requests during a stroke

let pending = 0;

/** Sends a request; without a body it is a GET. While it is pending, the page is marked as busy. */
export async function request(path, body) {
  const count = (change) => {
    pending += change;
    document.querySelector("main").setAttribute("aria-busy", String(pending > 0));
  };
  count(+1);
  try {
    return await send(path, body);
  } finally {
    count(-1);
  }
}

/** Throttles `act`: the result is called with whether a drawing is finished, and if so calls `act` at once. */
export function throttled(act) {
  let timer = null;
  return (finished) => {
    if (!finished && timer !== null) return;
    clearTimeout(timer);
    timer = null;
    if (finished) act();
    else timer = setTimeout(() => { timer = null; act(); }, STROKE_INTERVAL_MS);
  };
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

let waiting = null;

/** Resolves once the server responds again. Meanwhile `showBanner(text)` shows that; `showBanner(null)` ends it. */
export function untilServerResponds(showBanner) {
  waiting ??= (async () => {
    showBanner("The server does not respond. Retrying…");
    for (let delay = 500; ; delay = Math.min(delay * 1.5, 5000)) {
      await pause(delay);
      try {
        await request("healthz");
        break;
      } catch (error) {
        if (!(error instanceof ServerUnavailable)) break;
      }
    }
    showBanner(null);
    waiting = null;
  })();
  return waiting;
}

/**
 * A function that posts a body to `path`. While one request is pending, only the newest of the others is kept.
 * `onResponse(answer, body)` and `onError(error)` get the result. `cancel()` discards all requests.
 */
export function latest(path, onResponse, onError) {
  let busy = false;
  let next = null;
  let generation = 0;
  async function post(body) {
    next = body;
    if (busy) return;
    busy = true;
    while (next !== null) {
      const current = next;
      const started = generation;
      next = null;
      try {
        const answer = await request(path, current);
        if (started === generation) await onResponse(answer, current);
      } catch (error) {
        if (!(error instanceof ServerUnavailable || error instanceof RequestError)) { busy = false; throw error; }
        if (started === generation) onError(error);
      }
    }
    busy = false;
  }
  post.cancel = () => { next = null; generation += 1; };
  return post;
}
