/* All that is made of one tile of the map on the CPU, in one reading. cpu_tile.py compiles and calls it. */

#include <stdint.h>
#include <string.h>

#ifndef LANES /* numbers that are done at once: 4, 8 or 16 */
#define LANES 8
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

static inline Floats load(const float *from) {
    Floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline void store(float *to, Floats x) { memcpy(to, &x, sizeof x); }

static inline Floats all(float x) { return x - (Floats){0}; }

static inline Floats pick(Ints mask, Floats yes, Floats no) {
    return (Floats)(((Ints)yes & mask) | ((Ints)no & ~mask));
}

static inline Floats larger(Floats a, Floats b) { return pick(a > b, a, b); }

/* 2 to the power of x: of the whole part by the exponent's bits, of the rest, from -1/2 to 1/2, by a polynomial that is
   right to 2e-9. What float32 can hardly tell from 0 is 0, and what it can hardly hold is infinite. */
static inline Floats power(Floats x) {
    const Floats least = all(-125.5f);
    const Ints small = x < least;
    const float rounder = 12582912.0f; /* 1.5 times 2 to the 23rd: what is added to it loses its fraction */
    Floats usual = pick(small, least, x);
    Floats shifted = usual + rounder;
    Floats rest = usual - (shifted - rounder);
    Floats p = all(1.53375768e-4f);
    p = p * rest + 1.33998604e-3f;
    p = p * rest + 9.61851953e-3f;
    p = p * rest + 5.55032900e-2f;
    p = p * rest + 2.40226466e-1f;
    p = p * rest + 6.93147206e-1f;
    p = p * rest + 1.0f;
    Floats found = (Floats)((Ints)p + ((Ints)shifted << 23));
    found = pick(small, all(0.0f), found);
    return pick(x < 127.0f, found, all(1.0f / 0.0f));
}

static float sum(Floats x) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

struct Sums {
    Floats largest, entropy, distance, total;
};

/* Some logarithms of one row, and the place of the row less the first of their columns. */
static inline __attribute__((always_inline)) Floats step(Floats log, Floats far, struct Sums *sums, int rows) {
    Floats weight = power(log);
    if (rows) {
        far = (Floats)((Ints)far & 0x7FFFFFFF);
        sums->largest = larger(sums->largest, log);
        sums->entropy += weight * log;
        sums->distance += weight * far;
        sums->total += weight;
    }
    return weight;
}

static inline __attribute__((always_inline)) void row(
    const float *logs, long from, long to, float place, float factor, float *strip, float *weights, float *result,
    long next, int rows, int pixels, int keep) {
    Floats far = all(place - (float)from);
    for (int i = 0; i < LANES; i++) far[i] -= (float)i;
    struct Sums sums = {all(-1e30f), all(0), all(0), all(0)};
    long i = from;
    for (; i + LANES <= to; i += LANES, far -= (float)LANES) {
        Floats weight = step(load(logs + i), far, &sums, rows);
        if (pixels) store(strip + i, load(strip + i) + weight * factor);
        if (keep) store(weights + i, weight * factor);
    }
    if (i < to) {
        float rest[LANES];
        for (int n = 0; n < LANES; n++) rest[n] = i + n < to ? logs[i + n] : -1e30f;
        Floats weight = step(load(rest), far, &sums, rows);
        for (int n = 0; i + n < to; n++) {
            if (pixels) strip[i + n] += weight[n] * factor;
            if (keep) weights[i + n] = weight[n] * factor;
        }
    }
    if (rows) {
        for (int n = 0; n < LANES; n++)
            if (sums.largest[n] > result[0]) result[0] = sums.largest[n];
        result[next] += sum(sums.entropy);
        result[2 * next] += sum(sums.distance);
        result[3 * next] += sum(sums.total);
    }
}

/* A tile of logarithms, base 2, `height` rows of `width`.

   first, stop: the columns that each row sees, or none if all rows see all of them.
   places: where each row stands, less the first column of the tile.
   result: 4 lines of `next` numbers, to which each row adds its largest logarithm, the sums of weight * logarithm and of
           weight * distance, and the sum of weights; or none.
   strip: a row, `strip_next` numbers after the one before, for each `each` rows of the tile: their sum; or none.
   weights: where the weights go, each row `weights_next` numbers after the one before; or none.
   factors: what each row's weights are multiplied by, in strip and weights; or none. */
void sightline_tile(
    const float *logs, long height, long width, const int32_t *first, const int32_t *stop, const float *places,
    float *result, long next, float *strip, long strip_next, long each, float *weights, long weights_next,
    const float *factors) {
    for (long r = 0; r < height; r++) {
        long from = 0, to = width;
        if (first) {
            from = first[r] < 0 ? 0 : first[r] > width ? width : first[r];
            to = stop[r] > width ? width : stop[r] < from ? from : stop[r];
        }
        float *pixels = strip ? strip + r / each * strip_next : 0;
        if (strip && r % each == 0) memset(pixels, 0, (size_t)width * sizeof(float));
        float *kept = weights ? weights + r * weights_next : 0;
        if (kept) {
            memset(kept, 0, (size_t)from * sizeof(float));
            memset(kept + to, 0, (size_t)(width - to) * sizeof(float));
        }
        const float *line = logs + r * width;
        float *sums = result ? result + r : 0;
        float factor = factors ? factors[r] : 1.0f;
#define ROW(rows, pictured, keep) row(line, from, to, places[r], factor, pixels, kept, sums, next, rows, pictured, keep)
        if (sums) {
            if (pixels && kept) ROW(1, 1, 1);
            else if (pixels) ROW(1, 1, 0);
            else if (kept) ROW(1, 0, 1);
            else ROW(1, 0, 0);
        } else {
            if (pixels && kept) ROW(0, 1, 1);
            else if (pixels) ROW(0, 1, 0);
            else if (kept) ROW(0, 0, 1);
        }
    }
}
