/* All that is made of one tile of the map on the CPU, in one reading; and of whole maps, with their products.
   tile.py and maps.py call them, build.py compiles. */

#include <stdint.h>
#include <string.h>

#ifndef LANES /* numbers that are done at once: 4, 8 or 16 */
#define LANES 8
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES))); /* which may overflow */

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
   right to 2e-9. What float32 can hardly tell from 0 is 0, what it can hardly hold is infinite, and NaN stays NaN. */
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
    Floats found = (Floats)((Bits)p + ((Bits)shifted << 23));
    found = pick(small, all(0.0f), found);
    return pick(x >= 127.0f, all(1.0f / 0.0f), found);
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

/* Whole maps, from queries and keys on. Keys are packed in panels, columns side by side, and a few rows at a time are
   multiplied by the panels that they see: nothing is computed of what all of them are hidden from, and their logarithms
   are read where they lie in the nearest cache. */

#define ROWS (LANES == 16 ? 8 : 4)
#define WIDE 3
#define PANEL (WIDE * LANES)
#define SOME 32 /* rows whose weights are summed up in float32, before the sums of columns go on in float64 */

struct Maps {
    const float *q, *k; /* [batch, heads, queries, dim] and [batch, kv_heads, keys, dim], numbers of a row in order */
    const float *level; /* [maps, queries]: what makes logarithms of weights, base 2, of scores */
    float *rest;        /* [maps, queries]: what is to be taken away beside it, measured where it is NaN; or none */
    const float *factors; /* [maps, queries]: what weights are multiplied by beside the sums of rows; or none */
    const int32_t *first, *stop; /* [members, queries]: the keys that each row sees */
    float *result;      /* [4, maps, queries]: the lines of sightline_tile; or none */
    float *received;    /* [maps, keys]: sums over rows; or none */
    float *picture;     /* [maps, rows of pixels, columns of pixels]: sums over pixels times a unit; or none */
    const int32_t *row_edges, *column_edges; /* where pixels begin, and the end of the last; none if they are cells */
    int64_t maps, heads, groups, members, queries, keys, dim;
    int64_t q_batch, q_head, q_next, k_batch, k_head, k_next; /* from one to the next */
    int64_t pixel_rows, pixel_columns;
    float scale, place, unit; /* of products, base 2; where the first query stands among the keys; of pixels */
};

/* Floats of memory that a call needs. */
int64_t sightline_memory(int64_t keys, int64_t dim) {
    int64_t wide = (keys + PANEL - 1) / PANEL * PANEL;
    return wide * (dim + ROWS + 2) + 4 * keys + 2 * LANES;
}

static void pack(const float *k, int64_t next, int64_t keys, int64_t dim, float *panels) {
    for (int64_t p = 0; p < keys; p += PANEL, panels += PANEL * dim)
        for (int64_t j = 0; j < PANEL; j++) {
            const float *from = k + (p + j < keys ? p + j : keys - 1) * next;
            for (int64_t d = 0; d < dim; d++) panels[d * PANEL + j] = from[d];
        }
}

/* Some rows by one panel, scaled and with their levels. */
static inline __attribute__((always_inline)) void product(
    const float *const *rows, const float *panel, int64_t dim, float scale, const float *levels, float *out, int64_t next) {
    Floats sums[ROWS][WIDE];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
        for (int n = 0; n < WIDE; n++) sums[r][n] = all(0);
    for (int64_t d = 0; d < dim; d++, panel += PANEL) {
        Floats keys[WIDE];
#pragma GCC unroll 3
        for (int n = 0; n < WIDE; n++) keys[n] = load(panel + n * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            Floats x = all(rows[r][d]);
#pragma GCC unroll 3
            for (int n = 0; n < WIDE; n++) sums[r][n] += x * keys[n];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
        for (int n = 0; n < WIDE; n++) store(out + r * next + n * LANES, sums[r][n] * scale + levels[r]);
}

/* What a row lacks: the logarithm of its sum, base 2, taken from all its logarithms; 0 if that is no number. */
static float measured(float *logs, int64_t from, int64_t to) {
    double total = 0;
    for (int64_t i = from; i < to; i += LANES) {
        float some[LANES];
        for (int n = 0; n < LANES; n++) some[n] = i + n < to ? logs[i + n] : -1e30f;
        total += sum(power(load(some)));
    }
    float found = (float)__builtin_log2(total);
    return total > 0 && found - found == 0 ? found : 0;
}

/* A row of pixels, from the sums of their columns: those of all rows but the last in `before`, if there are more. */
static void pixels_of(
    const struct Maps *m, const float *strip, const double *before, int64_t from, int64_t to, float *out) {
    for (int64_t x = 0; x < m->pixel_columns; x++) {
        int64_t a = m->column_edges[x], b = m->column_edges[x + 1];
        double total = 0;
        a = a < from ? from : a, b = b < to ? b : to;
        for (int64_t i = a; i < b; i++) total += strip[i];
        if (before)
            for (int64_t i = a; i < b; i++) total += before[i];
        out[x] = (float)(total * m->unit);
    }
}

/* Sums of columns so far go on in float64. */
static void move(float *some, double *total, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) total[i] += some[i];
    if (from < to) memset(some + from, 0, (size_t)(to - from) * sizeof(float));
}

static void one_map(const struct Maps *m, int64_t map, const float *panels, float *memory) {
    int64_t queries = m->queries, keys = m->keys, dim = m->dim, wide = (keys + PANEL - 1) / PANEL * PANEL;
    int64_t member = m->members > 1 ? map / m->heads % m->members : 0, lines = m->maps * queries;
    const int32_t *first = m->first + member * queries, *stop = m->stop + member * queries;
    const float *q = m->q + map / m->heads * m->q_batch + map % m->heads * m->q_head;
    const float *level = m->level + map * queries;
    float *rest = m->rest ? m->rest + map * queries : 0;
    float *result = m->result ? m->result + map * queries : 0;
    int cells = m->picture && !m->row_edges;
    float *picture = m->picture ? m->picture + map * m->pixel_rows * m->pixel_columns : 0;
    float *logs = memory, *strip = logs + ROWS * wide, *some = strip + wide;
    double *total = (double *)(((uintptr_t)(some + wide) + 7) & ~(uintptr_t)7), *tall = total + keys;
    int wants = m->received != 0, pixels = picture && !cells, is_tall = 0;
    memset(some, 0, (size_t)keys * sizeof(float));
    memset(total, 0, (size_t)keys * 2 * sizeof(double));
    memset(strip, 0, (size_t)keys * sizeof(float));
    int64_t pixel = 0, low = keys, high = 0, strip_low = keys, strip_high = 0, held = 0;
    for (int64_t at = 0; at < queries; at += ROWS) {
        int64_t count = queries - at < ROWS ? queries - at : ROWS, left = keys, right = 0;
        const float *rows[ROWS];
        float levels[ROWS];
        for (int64_t r = 0; r < ROWS; r++) {
            int64_t own = at + (r < count ? r : count - 1);
            rows[r] = q + own * m->q_next;
            levels[r] = level[own];
            if (first[own] < stop[own]) {
                if (first[own] < left) left = first[own];
                if (stop[own] > right) right = stop[own];
            }
        }
        for (int64_t p = left / PANEL * PANEL; p < right; p += PANEL)
            product(rows, panels + p * dim, dim, m->scale, levels, logs + p, wide);
        for (int64_t r = 0; r < count; r++) {
            int64_t own = at + r, from = first[own], to = stop[own] > from ? stop[own] : from;
            float *line = logs + r * wide, factor = m->factors ? m->factors[map * queries + own] : 1.0f;
            float *found = result ? result + own : 0, *kept = cells ? picture + own * m->pixel_columns : 0;
            float place = m->place + (float)own, *sums = pixels ? strip : wants ? some : 0;
            if (rest) {
                if (rest[own] != rest[own]) rest[own] = measured(line, from, to);
                if (rest[own] != 0)
                    for (int64_t i = from; i < to; i++) line[i] -= rest[own];
            }
            if (found) {
                found[0] = -1e30f;
                for (int n = 1; n < 4; n++) found[n * lines] = 0;
            }
            if (kept) {
                memset(kept, 0, (size_t)from * sizeof(float));
                memset(kept + to, 0, (size_t)(keys - to) * sizeof(float));
            }
#define OWN(rows, pictured, keep) row(line, from, to, place, factor, sums, kept, found, lines, rows, pictured, keep)
            if (found) {
                if (sums && kept) OWN(1, 1, 1);
                else if (sums) OWN(1, 1, 0);
                else if (kept) OWN(1, 0, 1);
                else OWN(1, 0, 0);
            } else {
                if (sums && kept) OWN(0, 1, 1);
                else if (sums) OWN(0, 1, 0);
                else if (kept) OWN(0, 0, 1);
            }
            if (from < to) {
                if (from < low) low = from;
                if (to > high) high = to;
            }
            if (pixels) {
                if (from < to) {
                    if (from < strip_low) strip_low = from;
                    if (to > strip_high) strip_high = to;
                }
                if (own + 1 == m->row_edges[pixel + 1]) {
                    float *out = picture + pixel++ * m->pixel_columns;
                    pixels_of(m, strip, is_tall ? tall : 0, strip_low, strip_high, out);
                    if (is_tall)
                        for (int64_t i = strip_low; i < strip_high; i++) {
                            total[i] += tall[i];
                            tall[i] = 0;
                        }
                    move(strip, total, strip_low, strip_high);
                    strip_low = keys, strip_high = held = is_tall = 0;
                } else if (++held == SOME) {
                    move(strip, tall, strip_low, strip_high);
                    is_tall = 1, held = 0;
                }
            } else if (wants && (++held == SOME || own + 1 == queries)) {
                move(some, total, low, high);
                low = keys, high = held = 0;
            }
        }
    }
    if (wants)
        for (int64_t i = 0; i < keys; i++) m->received[map * keys + i] = (float)total[i];
}

/* The maps from one to another; `memory` is for this call alone. */
void sightline_maps(const struct Maps *m, int64_t from, int64_t to, float *memory) {
    int64_t wide = (m->keys + PANEL - 1) / PANEL * PANEL;
    const float *packed = 0;
    for (int64_t map = from; map < to; map++) {
        const float *k = m->k + map / m->heads * m->k_batch + map % m->heads / m->groups * m->k_head;
        if (k != packed) pack(k, m->k_next, m->keys, m->dim, memory);
        packed = k;
        one_map(m, map, memory, memory + wide * m->dim);
    }
}
