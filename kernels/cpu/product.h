/* The one matrix product: a few rows by a panel of a few vectors, the sums held in registers.
 *
 * Each sum runs over k = 0, 1, 2, ... in one chain of fused operations, starting from 0 or from
 * what `out` holds. So a result depends neither on how many rows are computed together, nor on how
 * k is cut into pieces, nor on the number of threads.
 */
#ifndef TURNOUT_PRODUCT_H
#define TURNOUT_PRODUCT_H

#include "simd.h"

/* How far ahead a panel that comes from memory is fetched, in floats. SmolLM2's products, 1 thread:
 * 8 rows take 56 ms without and 47 with, 1 row 46 either way; 512 in place of 1536: 49. */
#define AHEAD 1536

INLINE void product_of(
    int rows, int vectors, int fetch, int add, long depth, const float *x, long x_stride,
    const float *panel, long panel_stride, float *out, long out_stride
) {
    vec sum[8][3];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vectors; j++)
            sum[r][j] = add ? load(out + r * out_stride + j * LANES) : splat(0.0f);
    for (long k = 0; k < depth; k++) {
        const float *at = panel + k * panel_stride;
        vec column[3];
        for (int j = 0; j < vectors; j++) column[j] = load(at + j * LANES);
        if (fetch)
            for (int line = 0; line < vectors * LANES; line += 16)
                __builtin_prefetch(at + AHEAD + line);
        for (int r = 0; r < rows; r++) {
            vec value = splat(x[r * x_stride + k]);
            for (int j = 0; j < vectors; j++) sum[r][j] = fused(value, column[j], sum[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vectors; j++) store(out + r * out_stride + j * LANES, sum[r][j]);
}

#define PRODUCT_CASE(rows) \
    case rows: \
        product_of(rows, vectors, fetch, add, depth, x, x_stride, panel, panel_stride, out, \
                   out_stride); \
        break;

/* Any number of rows up to ROWS; vectors (1 to 3), fetch and add are constants at every call.
 *
 * x [rows, depth], panel [depth, vectors * LANES], out [rows, vectors * LANES]. */
INLINE void product_of_up_to(
    long rows, int vectors, int fetch, int add, long depth, const float *x, long x_stride,
    const float *panel, long panel_stride, float *out, long out_stride
) {
    switch (rows) {
        PRODUCT_CASE(1)
        PRODUCT_CASE(2)
        PRODUCT_CASE(3)
        PRODUCT_CASE(4)
#if ROWS > 4
        PRODUCT_CASE(5)
        PRODUCT_CASE(6)
        PRODUCT_CASE(7)
        PRODUCT_CASE(8)
#endif
    }
}

#endif
