// Arithmetic: a text is read by descent (sum, product, power, sign, value) and worked out in doubles.

const FUNCTIONS = {
  sqrt: Math.sqrt,
  ln: Math.log,
  log: Math.log10,
  exp: Math.exp,
  sin: Math.sin,
  cos: Math.cos,
  tan: Math.tan,
  abs: Math.abs,
  round: Math.round,
  floor: Math.floor,
  ceil: Math.ceil,
};
const CONSTANTS = { pi: Math.PI, e: Math.E };

/** The value of an expression, `x` standing for a number where it occurs; null if it is none. Angles are in radians. */
export function evaluate(text, x = null) {
  const tokens = text
    .toLowerCase()
    .replace(/[×·]/g, "*")
    .replace(/÷/g, "/")
    .replace(/−/g, "-")
    .replace(/²/g, "^2")
    .replace(/³/g, "^3")
    .replace(/(\d),(?=\d{3}(\D|$))/g, "$1")
    .match(/\d+(\.\d+)?|\.\d+|[a-z]+|\S/g);
  if (!tokens) return null;
  let at = 0;
  const take = (...wanted) => (wanted.includes(tokens[at]) ? tokens[at++] : null);

  const sum = () => {
    let left = product();
    for (let sign; (sign = take("+", "-"));) {
      const right = product();
      left = sign === "+" ? left + right : left - right;
    }
    return left;
  };
  const startsValue = () =>
    at < tokens.length && /^[a-z(]/.test(tokens[at]) && tokens[at] !== "of" && tokens[at] !== "mod";
  const product = () => {
    let left = signed();
    for (;;) {
      const sign = take("*", "/", "mod", "of");
      if (sign) {
        const right = signed();
        left =
          sign === "/"
            ? left / right
            : sign === "mod"
              ? left - right * Math.floor(left / right)
              : left * right;
      } else if (startsValue()) left *= power();
      else return left;
    }
  };
  const signed = () => (take("-") ? -signed() : take("+") ? signed() : power());
  const power = () => {
    const base = after(value());
    return take("^") ? base ** signed() : base;
  };
  const after = (number) => {
    for (let sign; (sign = take("!", "%"));) number = sign === "%" ? number / 100 : factorial(number);
    return number;
  };
  const value = () => {
    const token = tokens[at++];
    if (token === "(") {
      const inner = sum();
      if (!take(")")) throw new Error("a bracket is open");
      return inner;
    }
    if (/^[\d.]/.test(token ?? "")) return Number(token);
    if (token === "x" && x !== null) return x;
    if (Object.hasOwn(CONSTANTS, token)) return CONSTANTS[token];
    if (Object.hasOwn(FUNCTIONS, token) && tokens[at] === "(") return FUNCTIONS[token](value());
    throw new Error("no value here");
  };

  try {
    const result = sum();
    return at === tokens.length && Number.isFinite(result) ? result : null;
  } catch {
    return null;
  }
}

const factorial = (number) => {
  if (!Number.isInteger(number) || number < 0 || number > 170) throw new Error("no factorial");
  let product = 1;
  for (let at = 2; at <= number; at++) product *= at;
  return product;
};

/** Prime factors of a whole number from 2 below 10^12, each as often as it divides. */
export function factors(number) {
  const found = [];
  for (let prime = 2; prime * prime <= number; prime++)
    while (number % prime === 0) {
      found.push(prime);
      number /= prime;
    }
  return number > 1 ? [...found, number] : found;
}
export const gcd = (a, b) => (b ? gcd(b, a % b) : a);

/** Mean, median and so on of numbers; the deviation is that of a sample (n - 1). */
export function statistics(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b),
    count = numbers.length,
    sum = numbers.reduce((total, one) => total + one, 0),
    mean = sum / count,
    half = Math.floor(count / 2);
  const variance = count > 1 ? numbers.reduce((total, one) => total + (one - mean) ** 2, 0) / (count - 1) : 0;
  return {
    count,
    sum,
    mean,
    median: count % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2,
    smallest: sorted[0],
    largest: sorted.at(-1),
    variance,
    deviation: Math.sqrt(variance),
  };
}

/** The coefficients [a, b, c] of a x² + b x + c that an expression in x is; null if it is none such. */
export function quadratic(text) {
  const at = (x) => evaluate(text, x);
  if ([0, 1, -1, 2, 3].some((x) => at(x) === null)) return null;
  const c = at(0),
    a = (at(1) + at(-1)) / 2 - c,
    b = (at(1) - at(-1)) / 2;
  const fits = [2, 3].every(
    (x) => Math.abs(a * x * x + b * x + c - at(x)) < 1e-6 * Math.max(1, Math.abs(at(x))),
  );
  return fits ? [a, b, c].map((one) => Math.round(one * 1e9) / 1e9) : null;
}

/** Real roots of a x² + b x + c, smallest first. */
export function roots([a, b, c]) {
  if (!a) return b ? [-c / b] : [];
  const under = b * b - 4 * a * c;
  if (under < 0) return [];
  return [...new Set([(-b - Math.sqrt(under)) / (2 * a), (-b + Math.sqrt(under)) / (2 * a)])].sort(
    (one, two) => one - two,
  );
}

/** A loan paid back in equal months: the rate p a month is a twelfth of the yearly one, the payment P p / (1 - (1 + p)^-n). */
export function loan(amount, percent, years) {
  const rate = percent / 1200,
    months = years * 12,
    payment = rate ? (amount * rate) / (1 - (1 + rate) ** -months) : amount / months;
  const rows = [];
  let left = amount;
  for (let year = 1; year <= years; year++) {
    let interest = 0;
    for (let month = 0; month < 12; month++) {
      interest += left * rate;
      left -= payment - left * rate;
    }
    rows.push({ year, interest, left: Math.max(0, left) });
  }
  return { payment, total: payment * months, interest: payment * months - amount, rows };
}

/** Units by what they measure: [names, size in the first of them]. Sizes are exact by definition or rounded to six digits. */
export const UNITS = {
  length: [
    [["metre", "metres", "m"], 1],
    [["kilometre", "kilometres", "km"], 1000],
    [["centimetre", "centimetres", "cm"], 0.01],
    [["mile", "miles", "mi"], 1609.344],
    [["foot", "feet", "ft"], 0.3048],
    [["inch", "inches"], 0.0254],
    [["yard", "yards"], 0.9144],
    [["nautical mile", "nautical miles"], 1852],
    [["furlong", "furlongs"], 201.168],
  ],
  mass: [
    [["kilogram", "kilograms", "kg"], 1],
    [["gram", "grams", "g"], 0.001],
    [["tonne", "tonnes"], 1000],
    [["pound", "pounds", "lb"], 0.45359237],
    [["ounce", "ounces", "oz"], 0.028349523125],
    [["stone", "stones"], 6.35029318],
  ],
  volume: [
    [["litre", "litres", "l"], 1],
    [["millilitre", "millilitres", "ml"], 0.001],
    [["gallon", "gallons"], 3.785411784],
    [["pint", "pints"], 0.473176473],
    [["cup", "cups"], 0.2365882365],
    [["cubic metre", "cubic metres"], 1000],
  ],
  speed: [
    [["kilometre per hour", "kilometres per hour", "km/h"], 1],
    [["metre per second", "metres per second", "m/s"], 3.6],
    [["mile per hour", "miles per hour", "mph"], 1.609344],
    [["knot", "knots"], 1.852],
  ],
  time: [
    [["second", "seconds", "s"], 1],
    [["minute", "minutes", "min"], 60],
    [["hour", "hours", "h"], 3600],
    [["day", "days"], 86400],
    [["week", "weeks"], 604800],
    [["fortnight", "fortnights"], 1209600],
  ],
  energy: [
    [["joule", "joules", "j"], 1],
    [["kilojoule", "kilojoules", "kj"], 1000],
    [["calorie", "calories"], 4.184],
    [["kilocalorie", "kilocalories", "kcal"], 4184],
    [["kilowatt hour", "kilowatt hours", "kwh"], 3600000],
  ],
};

/** What a unit's name stands for: { kind, size, name }; null for a word that is none. */
export function unit(text) {
  for (const [kind, list] of Object.entries(UNITS))
    for (const [names, size] of list)
      if (names.includes(text)) return { kind, size, name: names[1] ?? names[0] };
  return null;
}

/** Whole numbers from 1 to 3999 in Roman letters. */
export function roman(number) {
  const signs = [
    ["M", 1000],
    ["CM", 900],
    ["D", 500],
    ["CD", 400],
    ["C", 100],
    ["XC", 90],
    ["L", 50],
    ["XL", 40],
    ["X", 10],
    ["IX", 9],
    ["V", 5],
    ["IV", 4],
    ["I", 1],
  ];
  return signs.reduce(
    ({ text, left }, [sign, size]) => ({
      text: text + sign.repeat(Math.floor(left / size)),
      left: left % size,
    }),
    { text: "", left: number },
  ).text;
}
