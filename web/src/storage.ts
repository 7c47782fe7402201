// What a browser remembers of one's choices.

export function stored(name: string): string | null {
  try {
    return localStorage.getItem(`sightline.${name}`);
  } catch {
    return null;
  }
}

export function store(name: string, value: string): void {
  try {
    localStorage.setItem(`sightline.${name}`, value);
  } catch {
    // private windows may have no storage: the choice lasts as long as the page
  }
}
