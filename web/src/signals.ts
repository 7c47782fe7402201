// A value that tells when it changes.

export class Signal<T> {
  private listeners = new Set<(value: T, before: T) => void>();
  constructor(private current: T) {}

  get value(): T {
    return this.current;
  }

  set(value: T): void {
    if (Object.is(value, this.current)) return;
    const before = this.current;
    this.current = value;
    for (const listener of [...this.listeners]) listener(value, before);
  }

  // In two steps, so that something else can change in between: first the value, then word of it.
  quietly(value: T): void {
    this.current = value;
  }

  announce(before: T): void {
    for (const listener of [...this.listeners]) listener(this.current, before);
  }

  // Tells now, and at every change; returns what stops it.
  watch(listener: (value: T, before: T) => void): () => void {
    const stop = this.on(listener);
    listener(this.current, this.current);
    return stop;
  }

  on(listener: (value: T, before: T) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
