// How figures are written. What is not known is a dash, never a 0.

export const NONE = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** A whole number with thin gaps: 1 234 567. */
export function count(value) {
  return known(value)
    ? Math.round(value)
        .toString()
        .replace(/\B(?=(\d{3})+$)/g, "\u202f")
    : NONE;
}

/** Three digits that matter: 1234 becomes 1 230 only where a unit follows; here it stays whole. */
export function number(value, digits = 3) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1000) return count(value);
  if (size >= 100) return value.toFixed(0);
  if (Number.isInteger(value)) return String(value);
  const decimals = Math.max(0, Math.min(6, digits - 1 - Math.floor(Math.log10(size))));
  return value.toFixed(decimals);
}

export function percent(share) {
  if (!known(share)) return NONE;
  const percents = share * 100;
  return `${percents >= 99.95 || percents < 0.05 ? percents.toFixed(0) : percents.toFixed(1)}\u202f%`;
}

/** Microseconds as people say them. */
export function duration(micros) {
  if (!known(micros)) return NONE;
  if (micros < 1000) return `${Math.round(micros)}\u202fµs`;
  if (micros < 1e6) return `${number(micros / 1e3)}\u202fms`;
  const seconds = micros / 1e6;
  if (seconds < 120) return `${number(seconds)}\u202fs`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}\u202fmin ${Math.floor(seconds % 60)}\u202fs`;
  return `${number(seconds / 3600)}\u202fh`;
}

export function bytes(size) {
  if (!known(size)) return NONE;
  for (const [unit, factor] of [
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ])
    if (size >= factor) return `${number(size / factor)}\u202f${unit}`;
  return `${size}\u202fB`;
}

export function dollars(usd) {
  if (!known(usd)) return NONE;
  return usd >= 100 ? `$${count(usd)}` : `$${usd.toPrecision(3)}`;
}

/** Microseconds since the Unix epoch, in the reader's own time zone. */
export function moment(micros) {
  if (!known(Number(micros))) return NONE;
  const at = new Date(Number(micros) / 1000);
  if (Number.isNaN(at.getTime())) return NONE;
  const two = (value) => String(value).padStart(2, "0");
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${date} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** `1 step`, `2 steps`. */
export function plural(value, thing) {
  return `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
}

/** A name of ours for people: `max_steps` becomes `max steps`. */
export function spacedName(name) {
  return String(name ?? NONE).replaceAll("_", " ");
}

/** The name of an hour of the device. */
export function deviceHour(device) {
  return { gpu: "GPU-hour", cpu: "CPU-hour" }[device] ?? "device-hour";
}

export function deviceName(device) {
  return { gpu: "GPU", cpu: "CPU" }[device] ?? "device";
}
