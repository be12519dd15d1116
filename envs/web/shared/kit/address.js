// Where a page may lead: to pages of its own site. An address may come from the page's own query, which a policy can write.

/**
 * The address if it is a path of this site, with its query and fragment; else `otherwise`. A path begins with one `/`. Characters that the URL
 * parser drops or rewrites (tabs, line breaks, `\`) are refused beforehand: with them `/\host` and `/<tab>/host` would name another host.
 */
export function ownPath(address, otherwise = "/") {
  return isOwnPath(address) ? address : otherwise;
}

/** Whether an address is such a path. */
export const isOwnPath = (address) =>
  typeof address === "string" &&
  /^\/(?![/\\])[^\\\p{Cc}\p{Cs}\u2028\u2029]*$/u.test(address) &&
  new URL(address, location.origin).origin === location.origin;

/** Goes to a page of this site. Pages are left by this, by `visitInstead` and by links alone: `location` itself takes scripts and other hosts. */
export const visit = (address, otherwise) => location.assign(ownPath(address, otherwise));

/** The same in place of the page that is shown: going back does not lead to it. */
export const visitInstead = (address, otherwise) => location.replace(ownPath(address, otherwise));

/** Attributes whose value is an address. */
const ADDRESSES = new Set(["href", "src", "action", "formaction"]);

/** Throws where an attribute would lead off this site. A fragment stays on the page; a blob is one that the page itself made. */
export function checkAttribute(name, value) {
  if (!ADDRESSES.has(name.toLowerCase()) || isOwnPath(value)) return;
  if (typeof value === "string" && (/^#[\w-]*$/.test(value) || value.startsWith(`blob:${location.origin}/`)))
    return;
  throw new Error(`kit: ${name} ${JSON.stringify(value)} is not a path of this site; begin it with one /`);
}
