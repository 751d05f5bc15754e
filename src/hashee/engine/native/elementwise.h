/* What is computed row by row between products: GELU, sums with a layer norm, softmax. */
#pragma once
#include "vectors.h"

/* e^x for x <= 0, to about one unit in the last place: 2^n times a polynomial in the remainder */
INLINE vec exponential(vec x) {
    const float nearest = 12582912.0f; /* 1.5 * 2^23: adding and subtracting it rounds to an integer */
    const vec least = splat(-87.0f);
    x = choose(x < least, least, x); /* in this order NaN is propagated */
    const vec n = (x * 1.44269504f + nearest) - nearest;
    vec r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    const float factors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    vec sum = splat(1.9875691500e-4f);
    for (int i = 0; i < 5; i++) sum = sum * r + factors[i];
    sum = (sum * (r * r) + r) + 1.0f;
    const ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    return sum * (vec)power;
}

/* (1 + erf(x / sqrt 2)) / 2, with 1 - erf = e^(-x^2 / 2) times a polynomial (Abramowitz and Stegun 7.1.26); bell: that
 * power of e */
INLINE vec normal_share(vec x, vec bell) {
    const vec size = (vec)((ints)x & 0x7fffffff), t = 1.0f / (size * (0.3275911f * 0.70710678f) + 1.0f);
    const float factors[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
    vec sum = splat(1.061405429f);
    for (int i = 0; i < 4; i++) sum = sum * t + factors[i];
    const vec tail = (sum * t) * (bell * 0.5f);
    return choose((ints)x < 0, tail, 1.0f - tail);
}

INLINE vec gelu(vec x) { return x * normal_share(x, exponential((x * x) * -0.5f)); }

/* x = gelu(x + bias) in one row; bias may be null */
static void activate_row(float *x, row bias, int64_t width) {
    for (int64_t k = 0; k < width; k += LANES) {
        const vec sum = load_part(x + k, width - k);
        store_part(x + k, gelu(bias ? sum + load_part(bias + k, width - k) : sum), width - k);
    }
}

/* The same in all rows. x: (rows, width); bias: (width) */
static void activate(float *x, row bias, int64_t rows, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) activate_row(x + r * width, bias, width);
}

/* y = layer norm of y + bias + residual in one row; the bias may be null */
static void norm_row(float *y, row bias, row residual, row gain, row shift, float epsilon, int64_t width) {
    vec sum = splat(0.0f), squares = splat(0.0f);
    for (int64_t k = 0; k < width; k += LANES) {
        vec x = load_part(y + k, width - k) + load_part(residual + k, width - k);
        if (bias) x += load_part(bias + k, width - k);
        store_part(y + k, x, width - k);
        sum += x;
    }
    const float mean = total(sum) / (float)width;
    for (int64_t k = 0; k < width; k += LANES) {
        vec x = load_part(y + k, width - k) - mean;
        if (width - k < LANES) x = load_part((row)&x, width - k); /* no number behind the row's end counts */
        squares += x * x;
    }
    const float deviation = __builtin_sqrtf(total(squares) / (float)width + epsilon);
    for (int64_t k = 0; k < width; k += LANES) {
        const vec x = (load_part(y + k, width - k) - mean) / deviation;
        store_part(y + k, x * load_part(gain + k, width - k) + load_part(shift + k, width - k), width - k);
    }
}

/* The same in all rows. y: (rows, width); residual: the same, with row stride step; bias, gain, shift: (width) */
static void add_and_norm(float *y, row bias, row residual, int64_t step, row gain, row shift, float epsilon,
                         int64_t rows, int64_t width) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        norm_row(y + r * width, bias, residual + r * step, gain, shift, epsilon, width);
}

/* scores: `count` numbers, in memory for a multiple of LANES; what is behind them becomes zero */
static void softmax(float *scores, int64_t count, float scale) {
    for (int64_t j = count; j % LANES; j++) scores[j] = scores[0];
    vec most = load(scores), sum = splat(0.0f);
    for (int64_t j = LANES; j < count; j += LANES) most = larger(load(scores + j), most);
    float top = most[0];
    for (int lane = 1; lane < LANES; lane++) top = most[lane] > top ? most[lane] : top;
    for (int64_t j = 0; j < count; j += LANES) store(scores + j, exponential((load(scores + j) - top) * scale));
    for (int64_t j = count; j % LANES; j++) scores[j] = 0.0f;
    for (int64_t j = 0; j < count; j += LANES) sum += load(scores + j);
    const float share = 1.0f / total(sum);
    for (int64_t j = 0; j < count; j += LANES) store(scores + j, load(scores + j) * share);
}
