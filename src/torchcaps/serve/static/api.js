// Questions to the server: one in flight for each kind, the latest wins, and a server that goes away is waited for.

/** The server's own sentence about what was wrong with a question. */
class Refused extends Error {}

/** No answer came at all. */
export class Away extends Error {}

const PATIENCE = 20_000;      // milliseconds until a server that says nothing is taken to be away
const WHILE_DRAWING = 60;     // milliseconds between two questions during a stroke

let onTheWay = 0;

/** While a question is on its way, the page says that it is busy. */
export async function ask(path, body) {
  const busy = (change) => {
    onTheWay += change;
    document.querySelector("main").setAttribute("aria-busy", String(onTheWay > 0));
  };
  busy(+1);
  try {
    return await answerTo(path, body);
  } finally {
    busy(-1);
  }
}

async function answerTo(path, body) {
  const request = body === undefined ? {} : {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(path, { ...request, signal: AbortSignal.timeout(PATIENCE) });
  } catch {
    throw new Away("The server does not answer.");
  }
  let answer = null;
  try {
    answer = await response.json();
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw new Away("The server does not answer.");      // it stopped on the way
    // Not JSON: an error page of a proxy. Said below.
  }
  if (response.ok && answer !== null) return answer;
  if ([502, 503, 504].includes(response.status)) throw new Away("The server does not answer.");
  throw new Refused(typeof answer?.detail === "string" ? answer.detail : `The server could not answer (${response.status}).`);
}

/** A function of whether a drawing is finished: then it calls `act` at once, and before that only now and then. */
export function paced(act) {
  let due = null;
  return (finished) => {
    if (!finished && due !== null) return;
    clearTimeout(due);
    due = null;
    if (finished) act();
    else due = setTimeout(() => { due = null; act(); }, WHILE_DRAWING);
  };
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

let waiting = null;

/** Resolves once the server answers again. `trouble(text)` is told, and told null when it is over. */
export function serverBack(trouble) {
  waiting ??= (async () => {
    trouble("The server does not answer. Trying again…");
    for (let delay = 500; ; delay = Math.min(delay * 1.5, 5000)) {
      await pause(delay);
      try {
        await ask("healthz");
        break;
      } catch (error) {
        if (!(error instanceof Away)) break;
      }
    }
    trouble(null);
    waiting = null;
  })();
  return waiting;
}

/**
 * A function that asks `path` a question. While one is on its way, only the newest of the others is kept.
 * `answered(answer, question)` gets what comes back, `failed(error)` what does not. `forget()` drops all of it.
 */
export function latest(path, answered, failed) {
  let busy = false;
  let next = null;
  let era = 0;
  async function question(body) {
    next = body;
    if (busy) return;
    busy = true;
    while (next !== null) {
      const now = next;
      const asked = era;
      next = null;
      try {
        const answer = await ask(path, now);
        if (asked === era) await answered(answer, now);
      } catch (error) {
        if (!(error instanceof Away || error instanceof Refused)) { busy = false; throw error; }
        if (asked === era) failed(error);
      }
    }
    busy = false;
  }
  question.forget = () => { next = null; era += 1; };
  return question;
}
