// Parses messages, a JSON list, with FormatJS; prints the places of arguments and branches of each, or its error.
import { readFileSync } from "node:fs";
import { TYPE, parse } from "@formatjs/icu-messageformat-parser";

const KINDS = { [TYPE.plural]: "icu", [TYPE.select]: "icu", [TYPE.pound]: "number" };

function places(elements) {
  return elements.flatMap((one) => {
    if (one.type === TYPE.literal) return [];
    const { start, end } = one.location;
    const branches = Object.entries(one.options ?? {}).flatMap(([selector, { location, value }]) => [
      [location.start.offset + 1, location.end.offset - 1, selector],
      ...places(value),
    ]);
    return [[start.offset, end.offset, KINDS[one.type] ?? "braces"], ...branches];
  });
}

const messages = JSON.parse(readFileSync(0, "utf8"));
const options = { captureLocation: true, ignoreTag: true, requiresOtherClause: false };
console.log(
  JSON.stringify(
    messages.map((message) => {
      try {
        return places(parse(message, options));
      } catch (error) {
        return String(error.message);
      }
    }),
  ),
);
