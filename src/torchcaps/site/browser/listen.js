// A worker's side of transport.js.

/** Answers each message with what the function for its path returns. */
export function listen(answers) {
  addEventListener("message", async ({ data: { id, path, body } }) => {
    try {
      postMessage({ id, answer: await answers[path](body) });
    } catch (error) {
      if (error.name === "HostUnavailable") postMessage({ id, unavailable: true });
      else postMessage({ id, error: error.message });
    }
  });
}
