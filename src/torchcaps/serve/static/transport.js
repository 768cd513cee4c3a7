// How requests reach the server. A folder for a static host has another module of this name, which answers itself.

/** The server rejected a request; the message is its own. */
export class RequestError extends Error {}

/** The server did not respond. */
export class ServerUnavailable extends Error {
  constructor() { super("The server does not respond."); }
}

const TIMEOUT_MS = 20_000;

/** Sends `body` by POST, or a GET without one, and returns the response. */
export async function send(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(path, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) });
  } catch {
    throw new ServerUnavailable();
  }
  let answer = null;
  try {
    answer = await response.json();
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw new ServerUnavailable();      // the connection broke
    // Not JSON: an error page of a proxy, handled below.
  }
  if (response.ok && answer !== null) return answer;
  if ([502, 503, 504].includes(response.status)) throw new ServerUnavailable();
  throw new RequestError(typeof answer?.detail === "string" ? answer.detail : `The server responded with an error (${response.status}).`);
}
