// The texts that were ordered in this tab, also before it was loaded again: when one is there, it is opened.

const NAME = "sightline.orders";
let known = new Set<string>(held());

function held(): string[] {
  try {
    return JSON.parse(sessionStorage.getItem(NAME) ?? "[]") as string[];
  } catch {
    return [];
  }
}

export function isOwn(id: string): boolean {
  return known.has(id);
}

export function setOwn(id: string, own: boolean): void {
  known = new Set([...known].filter((one) => one !== id).slice(-31));
  if (own) known.add(id);
  try {
    sessionStorage.setItem(NAME, JSON.stringify([...known]));
  } catch {
    // private windows may have no storage: it is known as long as the page
  }
}
