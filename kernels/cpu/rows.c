/* The ops that work row by row. Threads share the rows once there is enough to do; a row's result
 * does not depend on that.
 */
#include "simd.h"

#define SHARED 32768 /* floats from which a second thread is worth waking: about 5 us of work */

/* out[row] = x[row] / sqrt(mean(x[row]^2) + eps) * weight */
void turnout_rms_norm(float *out, const float *x, const float *weight, long rows, long width,
                      long x_stride, float eps, int threads) {
    long whole = width / LANES * LANES;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width >= SHARED)
    for (long row = 0; row < rows; row++) {
        const float *from = x + row * x_stride;
        float *to = out + row * width;
        vec tail = load_some(from + whole, width - whole);
        vec squares = tail * tail;
        for (long i = 0; i < whole; i += LANES) {
            vec value = load(from + i);
            squares = fused(value, value, squares);
        }
        vec scale = splat(1.0f / __builtin_sqrtf(sum_of_lanes(squares) / (float)width + eps));
        for (long i = 0; i < whole; i += LANES)
            store(to + i, load(from + i) * scale * load(weight + i));
        store_some(to + whole, tail * scale * load_some(weight + whole, width - whole),
                   width - whole);
    }
}

INLINE vec gated(vec gate, vec up) {
    return gate / (splat(1.0f) + exponential(-gate)) * up;
}

/* out[row] = silu(the first half of gate_up[row]) * the second half */
void turnout_silu_mul(float *out, const float *gate_up, long rows, long width, long stride,
                      int threads) {
    long whole = width / LANES * LANES;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * width >= SHARED)
    for (long row = 0; row < rows; row++) {
        const float *gate = gate_up + row * stride, *up = gate + width;
        float *to = out + row * width;
        for (long i = 0; i < whole; i += LANES) store(to + i, gated(load(gate + i), load(up + i)));
        long left = width - whole;
        store_some(to + whole, gated(load_some(gate + whole, left), load_some(up + whole, left)),
                   left);
    }
}

INLINE void turn(float *head, const float *cos, const float *sin, long half, long i, long count) {
    vec first = load_some(head + i, count), second = load_some(head + half + i, count);
    vec c = load_some(cos + i, count), s = load_some(sin + i, count);
    store_some(head + i, first * c - second * s, count);
    store_some(head + half + i, second * c + first * s, count);
}

/* Turns heads [rows, num_heads, >= 2 * half] by the angles [max_positions, half] of positions. */
void turnout_rotary(float *heads, const float *cos, const float *sin, const long *positions,
                    long rows, long num_heads, long half, long row_stride, long head_stride) {
    for (long row = 0; row < rows; row++) {
        const float *c = cos + positions[row] * half, *s = sin + positions[row] * half;
        for (long h = 0; h < num_heads; h++) {
            float *head = heads + row * row_stride + h * head_stride;
            long i = 0;
            for (; i + LANES <= half; i += LANES) turn(head, c, s, half, i, LANES);
            if (i < half) turn(head, c, s, half, i, half - i);
        }
    }
}

/* Copies rows [num_heads, head_dim] to slots of a cache [num_blocks, num_heads, block_size,
 * head_dim]. */
void turnout_store(float *cache, const float *from, const long *slots, long rows, long num_heads,
                   long head_dim, long row_stride, long block_size) {
    for (long row = 0; row < rows; row++) {
        if (slots[row] < 0) continue;
        long block = slots[row] / block_size, offset = slots[row] % block_size;
        for (long h = 0; h < num_heads; h++)
            memcpy(cache + ((block * num_heads + h) * block_size + offset) * head_dim,
                   from + row * row_stride + h * head_dim, head_dim * sizeof(float));
    }
}
