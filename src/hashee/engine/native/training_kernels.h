/* The kernels of training as Python calls them; half: whether products are in bfloat16, else in float32. */
#pragma once
#include "training_attention.h"

void hashee_train_gelu(const void *x, row bias, void *y, int64_t rows, int64_t width, int half, int threads) {
#pragma omp parallel num_threads(threads)
    if (half)
        activate_rows(x, bias, y, rows, width, 1);
    else
        activate_rows(x, bias, y, rows, width, 0);
}

void hashee_train_gelu_back(const void *x, row bias, void *grad, float *sums, int64_t rows, int64_t width, int half,
                            int threads) {
#pragma omp parallel num_threads(threads)
    if (half)
        activate_back(x, bias, grad, sums, rows, width, 1);
    else
        activate_back(x, bias, grad, sums, rows, width, 0);
}

void hashee_train_end(const void *x, const sublayer_end *end, float *out, void *copy, float *normed, float *scale,
                      int64_t rows, int64_t width, int half, int threads) {
#pragma omp parallel num_threads(threads)
    if (half)
        end_sublayer(x, end, out, copy, normed, scale, rows, width, 1);
    else
        end_sublayer(x, end, out, copy, normed, scale, rows, width, 0);
}

void hashee_train_end_back(float *grad, const sublayer_end *end, row normed, row scale, void *x_grad, float *sums,
                           int64_t rows, int64_t width, int half, int threads) {
#pragma omp parallel num_threads(threads)
    if (half)
        end_sublayer_back(grad, end, normed, scale, x_grad, sums, rows, width, 1);
    else
        end_sublayer_back(grad, end, normed, scale, x_grad, sums, rows, width, 0);
}

void hashee_train_attend(const attention *a, void *context, int half, int threads) {
#pragma omp parallel num_threads(threads)
    if (half)
        attend_rows_in_training(a, context, 1);
    else
        attend_rows_in_training(a, context, 0);
}

void hashee_train_attend_back(const attention *a, const void *grad, void *query_grad, void *key_grad, void *value_grad,
                              int half, int threads) {
#pragma omp parallel num_threads(threads)
    if (half)
        attend_rows_back(a, grad, query_grad, key_grad, value_grad, 1);
    else
        attend_rows_back(a, grad, query_grad, key_grad, value_grad, 0);
}
