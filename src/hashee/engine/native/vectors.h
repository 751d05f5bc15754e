/* Vectors of float32, as wide as the processor's registers: all that the other files know of an instruction set.
 *
 * Arithmetic is the compiler's own on vector types, with a product and a sum contracted to one operation. Widths of rows
 * are multiples of 8, so with 16 lanes the last vector of a row may be a half.
 */
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
#elif defined(__aarch64__)
#include <arm_neon.h>
#define LANES 4
#else
#error "no vectors for this processor"
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t loose_ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t loose_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef float quad __attribute__((vector_size(16)));
typedef float loose_quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef const float *row;

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE vec load(row p) { return *(const loose_vec *)p; }
INLINE void store(float *p, vec v) { *(loose_vec *)p = v; }
INLINE vec choose(ints mask, vec yes, vec no) { return (vec)((mask & (ints)yes) | (~mask & (ints)no)); }
INLINE vec larger(vec a, vec b) { return choose(a > b, a, b); }

/* The first numbers of a row with `count` left: a whole vector or, with 16 lanes, a half and zeros. */
INLINE vec load_part(row p, int64_t count) {
#if LANES == 16
    if (count < LANES) return _mm512_maskz_loadu_ps(0xff, p);
#endif
    (void)count;
    return load(p);
}

INLINE void store_part(float *p, vec v, int64_t count) {
#if LANES == 16
    if (count < LANES) {
        _mm512_mask_storeu_ps(p, 0xff, v);
        return;
    }
#endif
    (void)count;
    store(p, v);
}

#if LANES == 16
INLINE vec splat(float x) { return _mm512_set1_ps(x); }
INLINE float total(vec v) { return _mm512_reduce_add_ps(v); }
INLINE __m256 halves(vec v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
#elif LANES == 8
INLINE vec splat(float x) { return _mm256_set1_ps(x); }
INLINE float total(vec v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}
INLINE __m256 halves(vec v) { return v; }
#else
INLINE vec splat(float x) { return vdupq_n_f32(x); }
INLINE float total(vec v) { return vaddvq_f32(v); }
#endif

/* The totals of four vectors at once. */
INLINE quad totals(vec a, vec b, vec c, vec d) {
#if LANES >= 8
    const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(halves(a), halves(b)), _mm256_hadd_ps(halves(c), halves(d)));
    return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
#else
    return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
#endif
}

/* to[k][j] = from[j][k] for j, k < 4, where rows of `from` are from_step apart and those of `to` to_step. */
INLINE void transpose4(row from, int64_t from_step, float *to, int64_t to_step) {
    quad in[4], out[4];
    for (int j = 0; j < 4; j++) in[j] = *(const loose_quad *)(from + j * from_step);
#if LANES >= 8
    const __m128 low = _mm_unpacklo_ps(in[0], in[1]), high = _mm_unpackhi_ps(in[0], in[1]);
    const __m128 next_low = _mm_unpacklo_ps(in[2], in[3]), next_high = _mm_unpackhi_ps(in[2], in[3]);
    out[0] = _mm_movelh_ps(low, next_low);
    out[1] = _mm_movehl_ps(next_low, low);
    out[2] = _mm_movelh_ps(high, next_high);
    out[3] = _mm_movehl_ps(next_high, high);
#else
    for (int k = 0; k < 4; k++) out[k] = (quad){in[0][k], in[1][k], in[2][k], in[3][k]};
#endif
    for (int k = 0; k < 4; k++) *(loose_quad *)(to + k * to_step) = out[k];
}

/* Prefetch one of several parts of n rows, of which `bytes` bytes each are needed; rows are `step` bytes apart. */
INLINE void fetch(const void *rows, int64_t step, int64_t n, int64_t size, int64_t part, int64_t parts) {
    const int64_t lines = (size + 63) / 64, last = lines * (part + 1) / parts;
    for (int64_t q = 0; q < n; q++)
        for (int64_t line = lines * part / parts; line < last; line++)
            __builtin_prefetch((const char *)rows + q * step + 64 * line, 0, 2);
}
