/* A text on its own, from ids to states: its plan, its embeddings and its layers in one call. */
#pragma once
#include "elementwise.h"

/* What a call takes of an encoder; it stays the same from text to text. */
typedef struct {
    row words, positions, types; /* embeddings, (rows, width) each; types may be null */
    row gain, shift;             /* of the norm over their sum */
    const void *weights;         /* of all layers, as `hashee_layers` or `hashee_int8_layers` takes them */
    const float *epsilons;       /* two of each layer */
    const double *savings;       /* what the absorbed form saves in each layer for a token, an active one, and a pair */
    int64_t word_rows, position_rows, type_rows, layers, width, inner, heads, is_int8;
    float epsilon, scale;
} text_encoder;

/* The tokens of a text; all have `length` entries. */
typedef struct {
    const int64_t *ids, *mask, *types, *positions; /* mask, types and positions may be null: all real, 0, columns */
    int64_t length;
    int64_t first_only; /* whether only the first token is read after the last layer */
} text_tokens;

/* Sort the real tokens by falling exit layer: columns[k] is where packed row k comes from; active: (layers + 1) rows that
 * each layer updates. Returns the number of tokens, or -1 if the text is not as the kernels take it. */
static int64_t plan_text(const text_encoder *e, const text_tokens *t, const int64_t *exits, int64_t *columns, int64_t *active) {
    int64_t next[e->layers + 1];
    memset(active, 0, sizeof(int64_t) * (size_t)(e->layers + 1));
#define EXIT(c) smaller(exits[t->ids[c]], t->first_only && (c) ? e->layers - 1 : e->layers)
    for (int64_t c = 0; c < t->length; c++) {
        const int64_t id = t->ids[c], type = t->types ? t->types[c] : 0, position = t->positions ? t->positions[c] : c;
        const int64_t real = t->mask ? t->mask[c] : 1;
        if ((real != 0 && real != 1) || (c == 0 && !real)) return -1;
        if (!real) continue;
        if (id < 0 || id >= e->word_rows || position < 0 || position >= e->position_rows) return -1;
        if (e->types && (type < 0 || type >= e->type_rows)) return -1;
        if (exits[id] < 0 || exits[id] > e->layers) return -1;
        active[EXIT(c)]++;
    }
    for (int64_t l = e->layers, before = 0; l >= 0; l--) {
        next[l] = before;
        before += active[l];
        active[l] = before;
    }
    for (int64_t c = 0; c < t->length; c++)
        if (!t->mask || t->mask[c]) columns[next[EXIT(c)]++] = c;
#undef EXIT
    return active[0];
}

/* states[k] = the norm of the sum of the embeddings of the token in column columns[k]. */
static void embed_text(const text_encoder *e, const text_tokens *t, const int64_t *columns, float *states, int64_t tokens) {
#pragma omp for schedule(static)
    for (int64_t k = 0; k < tokens; k++) {
        const int64_t c = columns[k], position = t->positions ? t->positions[c] : c;
        float *to = states + k * e->width;
        memcpy(to, e->words + t->ids[c] * e->width, sizeof(float) * (size_t)e->width);
        norm_row(to, e->types ? e->types + (t->types ? t->types[c] : 0) * e->width : NULL, e->positions + position * e->width,
                 e->gain, e->shift, e->epsilon, e->width);
    }
}

/* Run a text. exits: exit layer of every id; out: (length, width) states, of padding zero; if only the first is read,
 * those of the others are NaN. Returns the number of tokens, or -1, with nothing done, if kernels do not take the text. */
int64_t hashee_text(const text_encoder *e, const text_tokens *t, const int64_t *exits, float *out, int threads) {
    const int64_t width = e->width, whole = t->length * width;
    int64_t columns[t->length], slots[t->length], active[e->layers + 1], absorbed[e->layers];
    const int64_t tokens = plan_text(e, t, exits, columns, active);
    if (tokens < 1) return -1;
    int64_t layers = 0, attention = 0;
    for (; layers < e->layers && active[layers + 1]; layers++) {
        const int64_t m = active[layers + 1];
        const double *saved = e->savings + 3 * layers;
        absorbed[layers] = saved[0] * (double)tokens + saved[1] * (double)m + saved[2] * (double)(tokens * m) > 0;
        const int64_t needed = absorbed[layers] ? e->heads * width * m : 2 * tokens * width;
        attention = needed > attention ? needed : attention;
    }
    for (int64_t k = 0; k < tokens; k++) slots[k] = k;
    const int64_t space = e->is_int8 ? 0 : active[1] * (3 * width + e->inner) + attention;
    float *states;
    if (posix_memalign((void **)&states, 64, sizeof(float) * (size_t)(tokens * width + space))) abort();
#pragma omp parallel num_threads(threads) if (tokens > 32)
    embed_text(e, t, columns, states, tokens);
    if (layers) {
        /* There is one sequence, so its queries in a layer are all that the layer updates. */
        if (e->is_int8)
            hashee_int8_layers(states, e->weights, e->epsilons, active + 1, absorbed, slots, tokens, &tokens, active + 1, 1,
                               layers, tokens, width, e->inner, e->heads, e->scale, threads);
        else
            hashee_layers(states, e->weights, e->epsilons, active + 1, absorbed, slots, tokens, &tokens, active + 1, 1,
                          layers, tokens, width, e->inner, e->heads, e->scale, states + tokens * width, threads);
    }
    if (t->first_only)
        for (int64_t k = 0; k < whole; k++) out[k] = __builtin_nanf("");
    else if (tokens < t->length)
        memset(out, 0, sizeof(float) * (size_t)whole);
    for (int64_t k = 0; k < tokens; k++)
        if (!t->first_only || columns[k] == 0)
            memcpy(out + columns[k] * width, states + k * width, sizeof(float) * (size_t)width);
    free(states);
    return tokens;
}
