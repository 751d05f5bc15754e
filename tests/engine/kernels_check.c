/* Runs every kernel on the same numbers, whatever the processor, and prints what they give. */
#include "kernels.c"
#include <stdio.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { WIDTH = 96, INNER = 208, HEADS = 3, TOKENS = 30, LAYERS = 2 };

static uint32_t seed = 1;
static float number(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
}
static float *numbers(int64_t count, float factor) {
    float *made = malloc(sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++) made[i] = factor * number();
    return made;
}
static void show(const char *name, const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) printf("%s %.6g\n", name, values[i]);
}

/* The fields of an int8 weight in blocks: weight, steps, sums, bias. */
static void fill_matrix(const void **fields, int64_t features, int64_t width) {
    int8_t *weight = malloc((size_t)(features * width));
    float *step = numbers(features, 0.0f), *sums = numbers(features, 0.0f);
    for (int64_t f = 0; f < features; f++) step[f] = 0.002f + 0.001f * number();
    for (int64_t i = 0; i < features * width; i++) {
        const int64_t feature = i / (16 * width) * 16 + i % 64 / 4;
        weight[i] = (int8_t)(254.0f * number());
        sums[feature] += (float)weight[i] * step[feature];
    }
    fields[0] = weight, fields[1] = step, fields[2] = sums, fields[3] = numbers(features, 0.2f);
}

static float *columns_of(const void *const *fields) {
    float *columns = numbers(HEADS * WIDTH, 0.0f);
    for (int64_t i = 0; i < WIDTH * WIDTH; i++) {
        const int64_t feature = i / (16 * WIDTH) * 16 + i % 64 / 4, column = i % (16 * WIDTH) / 64 * 4 + i % 4;
        columns[feature / (WIDTH / HEADS) * WIDTH + column] += ((const int8_t *)fields[0])[i];
    }
    return columns;
}

int main(void) {
    const int64_t rows[] = {1, 5, 13, 230};
    for (size_t n = 0; n < COUNT(rows); n++) {
        float *x = numbers(rows[n] * 104, 2.0f), *w = numbers(70 * 104, 1.0f), *b = numbers(70, 1.0f), *y = numbers(rows[n] * 70, 0);
        hashee_linear(x, 104, w, b, y, rows[n], 104, 70, 1);
        show("linear", y, rows[n] * 70);
        const void *fields[4];
        fill_matrix(fields, 48, 96);
        hashee_int8_linear(x, 104, fields, y, rows[n], 96, 48, 1);
        show("int8_linear", y, rows[n] * 48);
    }
    float *x = numbers(8 * 24, 9.0f);
    hashee_gelu(x, NULL, 8, 24, 1);
    show("gelu", x, 8 * 24);

    int64_t slots[2][18] = {{0}}, lengths[] = {18, 12}, queries[] = {9, 5, 4, 2}, active[] = {14, 6};
    /* Active rows come first in both layers: the first six are the queries of the second layer. */
    const int64_t first[] = {0, 1, 2, 3, 6, 7, 8, 9, 10}, second[] = {4, 5, 11, 12, 13};
    for (int64_t i = 0; i < 18; i++) slots[0][i] = i < 9 ? first[i] : 14 + i - 9;
    for (int64_t i = 0; i < 12; i++) slots[1][i] = i < 5 ? second[i] : 23 + i - 5;
    const float epsilons[] = {1e-5f, 1e-5f, 1e-5f, 1e-5f};
    for (int64_t form = 0; form < 2; form++) {
        const int64_t absorbed[] = {form, form};
        row weights[15 * LAYERS];
        const void *fields[29 * LAYERS];
        for (int l = 0; l < LAYERS; l++) {
            const int64_t sizes[] = {WIDTH * WIDTH, WIDTH, WIDTH * WIDTH, WIDTH * WIDTH, WIDTH, WIDTH * WIDTH, WIDTH, WIDTH,
                                     WIDTH, INNER * WIDTH, INNER, WIDTH * INNER, WIDTH, WIDTH, WIDTH};
            for (int i = 0; i < 15; i++) weights[15 * l + i] = numbers(sizes[i], sizes[i] > INNER ? 0.2f : 1.0f);
            const void **own = fields + 29 * l;
            for (int i = 0; i < 3; i++) fill_matrix(own + 4 * i, WIDTH, WIDTH);
            own[12] = columns_of(own + 4);
            fill_matrix(own + 13, WIDTH, WIDTH);
            fill_matrix(own + 17, INNER, WIDTH);
            fill_matrix(own + 21, WIDTH, INNER);
            for (int i = 25; i < 29; i++) own[i] = numbers(WIDTH, 1.0f);
        }
        float *states = numbers(TOKENS * WIDTH, 2.0f), *copy = numbers(TOKENS * WIDTH, 0), *space = numbers(100000, 0);
        memcpy(copy, states, sizeof(float) * TOKENS * WIDTH);
        hashee_layers(states, weights, epsilons, active, absorbed, slots[0], 18, lengths, queries, 2, LAYERS, TOKENS,
                      WIDTH, INNER, HEADS, 0.2f, space, 1);
        show("layers", states, TOKENS * WIDTH);
        hashee_int8_layers(copy, fields, epsilons, active, absorbed, slots[0], 18, lengths, queries, 2, LAYERS, TOKENS,
                           WIDTH, INNER, HEADS, 0.2f, 1);
        show("int8_layers", copy, TOKENS * WIDTH);
    }
    return 0;
}
