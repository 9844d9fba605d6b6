// Elections through any registry that speaks HTTP with ETags: GET, and PUT on the condition of If-Match or
// If-None-Match. Its ETag is the version, and it must honour both conditions: some ignore them silently.

/**
 * @param {string} url  of the registry; a record lies below it under its key
 * @param {{ fetch?: typeof fetch, headers?: Record<string, string> }} [options]
 * @returns {import("whenleader").LeaseStore}
 */
export function httpRegistryStore(url, { fetch: send = fetch, headers = {} } = {}) {
  const place = (/** @type {string} */ key) => `${url}/${encodeURIComponent(key)}`;
  /** @type {(response: Response) => never} */
  const refuse = (response) => {
    throw new Error(`the registry answered ${response.status} ${response.statusText}`);
  };
  return {
    async get(key) {
      const response = await send(place(key), {
        headers: { ...headers, "Cache-Control": "no-store" },
        signal: AbortSignal.timeout(5_000),
      });
      if (response.status === 404) return null;
      if (!response.ok) refuse(response);
      const record = /** @type {object} */ (await response.json());
      return { ...record, version: response.headers.get("etag") ?? "" };
    },

    async compareAndSet(key, expectedVersion, value) {
      const condition =
        expectedVersion === null
          ? { "If-None-Match": "*" }
          : { "If-Match": String(expectedVersion) };
      const response = await send(place(key), {
        method: "PUT",
        headers: { ...headers, "Content-Type": "application/json", ...condition },
        // The random word in value.version stays in it: an ETag that is a hash of the content needs it.
        body: JSON.stringify(value),
        signal: AbortSignal.timeout(5_000),
      });
      if (response.status === 412 || response.status === 409 || response.status === 404)
        return false;
      if (!response.ok) refuse(response);
      return response.headers.get("etag") ?? "";
    },
  };
}
