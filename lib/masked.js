// Texts of others (errors of a database driver, answers of a store) as they may be shown: in one line, not too
// long, and without passwords. What is in doubt is not shown; the native side does the same with the URLs that it
// is given (without_password() in src/backend/mod.rs).

/** The longest part of such a text that is repeated. */
const SHOWN = 300;
/** And the longest that is looked through for it: somebody's error may hold a whole page. */
const READ = 4 * SHOWN;

/** Up to the next blank: a password that was not percent-encoded may hold any other character. */
const URLS = /([a-z][a-z0-9+.-]*:\/\/)(\S+)/gi;
/** What ends a sentence, a quotation or a list, and no URL. */
const TAIL = /[.,:;!)\]}'"`>]*$/;
/** What a URL without credentials begins with: hosts with their ports. */
const HOSTS = /^[\w.-]*(:\d+)?(,[\w.-]+(:\d+)?)*$|^\[[\da-f:.%]+\](:\d+)?$/i;

const SECRET =
  "(?:[\\w-]*(?:passw(?:or)?d|passphrase|pwd|secret|credentials?|signature)|" +
  "(?:[\\w-]*[_-])?pass|(?:access|auth|id|refresh|session|security|bearer)[_-]?token|" +
  "[\\w-]*(?:api|access|account|private|shared|sas)[_-]?key)";
const QUOTED = "\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|`[^`]*(?:`|$)";
/** As in URLs, in the words of libpq, and in connection strings. */
const ASSIGNED = new RegExp(`(\\b${SECRET}["'\`]?\\s?=\\s?)(?:${QUOTED}|[^\\s,;&#)}\\]]+)`, "gi");
/** As in JSON, and as objects are shown; without quotation marks what follows is a sentence. */
const NAMED = new RegExp(`(\\b${SECRET}["'\`]?\\s?:\\s?)(?:${QUOTED})`, "gi");
const AUTHORIZATION =
  /(\bauthorization["'`]?\s?[:=]\s?["'`]?(?:basic|bearer|token|apikey|negotiate)\s)[^\s"'`,]+/gi;

/** @param {string} text */
function masked(text) {
  return text
    .replace(URLS, (_, scheme, rest) => scheme + maskedUrl(scheme, rest))
    .replace(AUTHORIZATION, "$1***")
    .replace(ASSIGNED, "$1***")
    .replace(NAMED, "$1***");
}

/**
 * @param {string} scheme
 * @param {string} text  what follows it
 */
function maskedUrl(scheme, text) {
  const tail = TAIL.exec(text)?.[0] ?? "";
  const url = text.slice(0, text.length - tail.length);
  const authority = url.slice(0, /[/?#]|$/.exec(url)?.index);
  const at = url.lastIndexOf("@");
  // Of a path, such as a package's name, unless the colon before it begins a password with a slash in it.
  const isOfPath = /^https?:/i.test(scheme) && !/[@:]/.test(authority);
  if (at >= 0 && !isOfPath) return `${userOf(url.slice(0, at))}***@${url.slice(at + 1)}${tail}`;
  if (HOSTS.test(authority)) return text;
  // No port, so perhaps a password whose host was forgotten.
  const colon = authority.indexOf(":");
  return colon < 0 ? text : `${authority.slice(0, colon)}:***${tail}`;
}

/** A user's name is no secret, if it is one. @param {string} credentials */
function userOf(credentials) {
  return /^[\w.%-]*:/.exec(credentials)?.[0] ?? "";
}

/** In one line, and not too long, too. @param {string} text */
function short(text) {
  const line = masked(text.replace(/\s+/g, " ").slice(0, READ));
  // By characters: half of one cannot be written.
  const characters = [...line.slice(0, 2 * SHOWN + 2)];
  return characters.length > SHOWN ? `${characters.slice(0, SHOWN).join("")}...` : line;
}

module.exports = { masked, short };
