/* What a training step computes between its products, forward and backward: GELU, dropout, residual sums and norms.
 *
 * What products read and write is float32 or, with `half`, bfloat16; norms and sums over rows are always float32. A
 * dropout mask is a function of a seed and of where a number stands, so the backward pass makes it anew instead of
 * keeping it, whatever the number of threads.
 */
#pragma once
#include "elementwise.h"

#define PARTS 16 /* of the rows, each with sums of its own: sums do not depend on the number of threads */

typedef uint32_t uints __attribute__((vector_size(4 * LANES)));
typedef uint16_t shorts __attribute__((vector_size(2 * LANES)));
typedef uint16_t loose_shorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

/* The numbers of a dropout that leaves `keep` times what it does not drop; limit: of 24 bits, below which it drops. */
typedef struct {
    int64_t seed;
    int64_t limit;
    float keep;
} dropout;

/* The vector at number `at` of a row of which `count` numbers are left. */
INLINE vec get(const void *numbers, int64_t at, int64_t count, int half) {
    if (!half) return load_part((row)numbers + at, count);
    const uint16_t *from = (const uint16_t *)numbers + at;
    shorts narrow = {0};
    if (count < LANES)
        memcpy(&narrow, from, 16);
    else
        narrow = *(const loose_shorts *)from;
    return (vec)(__builtin_convertvector(narrow, uints) << 16);
}

/* To the nearest bfloat16, ties to even; what is not a number stays one. */
INLINE void put(void *numbers, int64_t at, int64_t count, vec value, int half) {
    if (!half) {
        store_part((float *)numbers + at, value, count);
        return;
    }
    uint16_t *to = (uint16_t *)numbers + at;
    const uints bits = (uints)value;
    const ints is_nan = value != value;
    const uints rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const shorts narrow = __builtin_convertvector(((rounded & ~(uints)is_nan) | (bits & (uints)is_nan)) >> 16, shorts);
    if (count < LANES)
        memcpy(to, &narrow, 16);
    else
        *(loose_shorts *)to = narrow;
}

/* The finalizer "lowbias32" of C. Wellons' search for hash functions, which is in the public domain. */
#define SCRAMBLE(x) \
    x ^= x >> 16;   \
    x *= 0x7feb352d; \
    x ^= x >> 15;   \
    x *= 0x846ca68b; \
    x ^= x >> 16;

INLINE uint32_t row_key(int64_t seed, int64_t number) {
    uint32_t x = (uint32_t)seed + (uint32_t)number * 0x9e3779b9u;
    SCRAMBLE(x)
    return x;
}

/* By what the numbers from a column on are multiplied: 0 or `keep`. */
INLINE vec kept(uint32_t key, int64_t column, const dropout *drop) {
#if LANES == 16
    const uints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES == 8
    const uints lanes = {0, 1, 2, 3, 4, 5, 6, 7};
#else
    const uints lanes = {0, 1, 2, 3};
#endif
    uints x = lanes + (key + (uint32_t)column);
    SCRAMBLE(x)
    return choose((ints)(x >> 8) >= (int32_t)drop->limit, splat(drop->keep), splat(0.0f));
}

/* The derivative of `gelu`: the normal distribution up to x plus x times its density. */
INLINE vec gelu_slope(vec x) {
    const vec bell = exponential((x * x) * -0.5f);
    return normal_share(x, bell) + x * bell * 0.39894228f;
}

/* y = gelu(x + bias). x, y: (rows, width); bias: (width) */
INLINE void activate_rows(const void *x, row bias, void *y, int64_t rows, int64_t width, int half) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < width; k += LANES) {
            const int64_t at = r * width + k, left = width - k;
            put(y, at, left, gelu(get(x, at, left, half) + load_part(bias + k, left)), half);
        }
}

/* grad *= the slope of gelu at x + bias; sums: (PARTS, width), of grad over the rows of each part */
INLINE void activate_back(const void *x, row bias, void *grad, float *sums, int64_t rows, int64_t width, int half) {
#pragma omp for schedule(static)
    for (int64_t part = 0; part < PARTS; part++) {
        float *sum = sums + part * width;
        memset(sum, 0, sizeof(float) * (size_t)width);
        for (int64_t r = rows * part / PARTS; r < rows * (part + 1) / PARTS; r++)
            for (int64_t k = 0; k < width; k += LANES) {
                const int64_t at = r * width + k, left = width - k;
                const vec slope = gelu_slope(get(x, at, left, half) + load_part(bias + k, left));
                const vec change = get(grad, at, left, half) * slope;
                put(grad, at, left, change, half);
                store_part(sum + k, load_part(sum + k, left) + change, left);
            }
    }
}

/* A sub-layer's end: layer norm of dropout(x + bias) + residual. */
typedef struct {
    row bias, residual;
    int64_t residual_step;
    row gain, shift;
    float epsilon;
    dropout drop;
} sublayer_end;

/* x: (rows, width), what the product gave; out: (rows, width) float32, and `copy` in bfloat16 with `half`;
 * normed: (rows, width), before gain and shift; scale: (rows), by which deviations from the mean were multiplied */
INLINE void end_sublayer(const void *x, const sublayer_end *end, float *out, void *copy, float *normed, float *scale,
                         int64_t rows, int64_t width, int half) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const uint32_t key = row_key(end->drop.seed, r);
        float *sums = normed + r * width;
        vec sum = splat(0.0f), squares = splat(0.0f);
        for (int64_t k = 0; k < width; k += LANES) {
            const int64_t left = width - k;
            vec value = get(x, r * width + k, left, half) + load_part(end->bias + k, left);
            if (end->drop.limit) value *= kept(key, k, &end->drop);
            value += load_part(end->residual + r * end->residual_step + k, left);
            if (left < LANES) value = load_part((row)&value, left);
            store_part(sums + k, value, left);
            sum += value;
        }
        const float mean = total(sum) / (float)width;
        for (int64_t k = 0; k < width; k += LANES) {
            vec value = load_part(sums + k, width - k) - mean;
            if (width - k < LANES) value = load_part((row)&value, width - k);
            squares += value * value;
        }
        scale[r] = 1.0f / __builtin_sqrtf(total(squares) / (float)width + end->epsilon);
        for (int64_t k = 0; k < width; k += LANES) {
            const int64_t left = width - k, at = r * width + k;
            const vec value = (load_part(sums + k, left) - mean) * scale[r];
            const vec result = value * load_part(end->gain + k, left) + load_part(end->shift + k, left);
            store_part(sums + k, value, left);
            store_part(out + at, result, left);
            if (half) put(copy, at, left, result, 1);
        }
    }
}

/* grad: (rows, width), of `out`, becomes that of the residual; x_grad: (rows, width), of the product;
 * sums: (PARTS, 3, width), of the gradients of gain, shift and bias over the rows of each part */
INLINE void end_sublayer_back(float *grad, const sublayer_end *end, row normed, row scale, void *x_grad, float *sums,
                              int64_t rows, int64_t width, int half) {
#pragma omp for schedule(static)
    for (int64_t part = 0; part < PARTS; part++) {
        float *gain = sums + part * 3 * width, *shift = gain + width, *bias = shift + width;
        memset(gain, 0, sizeof(float) * (size_t)(3 * width));
        for (int64_t r = rows * part / PARTS; r < rows * (part + 1) / PARTS; r++) {
            const uint32_t key = row_key(end->drop.seed, r);
            vec sum = splat(0.0f), products = splat(0.0f);
            for (int64_t k = 0; k < width; k += LANES) {
                const int64_t left = width - k, at = r * width + k;
                const vec change = load_part(grad + at, left), value = load_part(normed + at, left);
                const vec own = change * load_part(end->gain + k, left);
                store_part(gain + k, load_part(gain + k, left) + change * value, left);
                store_part(shift + k, load_part(shift + k, left) + change, left);
                sum += own;
                products += own * value;
            }
            const float mean = total(sum) / (float)width, slope = total(products) / (float)width;
            for (int64_t k = 0; k < width; k += LANES) {
                const int64_t left = width - k, at = r * width + k;
                const vec own = load_part(grad + at, left) * load_part(end->gain + k, left);
                vec change = (own - mean - load_part(normed + at, left) * slope) * scale[r];
                store_part(grad + at, change, left);
                if (end->drop.limit) change *= kept(key, k, &end->drop);
                put(x_grad, at, left, change, half);
                store_part(bias + k, load_part(bias + k, left) + change, left);
            }
        }
    }
}
