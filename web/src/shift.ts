// How far to scroll so that what is pinned is in view. No element in here.

export interface Stretch {
  top: number;
  bottom: number;
}

const EDGE = 8;

// 0 where it is in view already; else to the middle. The second comes along where there is room for both.
export function shift(frame: Stretch, must: Stretch, also: Stretch | null = null): number {
  const room = frame.bottom - frame.top - 2 * EDGE;
  const both = also && { top: Math.min(must.top, also.top), bottom: Math.max(must.bottom, also.bottom) };
  const shown = both && both.bottom - both.top <= room ? both : must;
  if (shown.top >= frame.top + EDGE && shown.bottom <= frame.bottom - EDGE) return 0;
  return (shown.top + shown.bottom - frame.top - frame.bottom) / 2;
}
