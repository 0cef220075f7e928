/* x @ matrix, the matrix packed in panels of PANEL columns: each is read once, end to end, for all
 * rows of up to ROW_BLOCK, so that few rows run at the speed of memory.
 */
#include "product.h"

#define PANEL (3 * LANES)
#define ROW_BLOCK 128 /* rows that stay in the second cache, beside a panel */

long turnout_panel_width(void) { return PANEL; }

/* The last panel may be wider than what is left of `out`. */
static void narrow(long rows, long depth, const float *x, long x_stride, const float *panel,
                   float *out, long out_stride, long columns) {
    float whole[ROWS * PANEL];
    product_of_up_to(rows, 3, 1, 0, depth, x, x_stride, panel, PANEL, whole, PANEL);
    for (long r = 0; r < rows; r++)
        memcpy(out + r * out_stride, whole + r * PANEL, columns * sizeof(float));
}

/* x [rows, depth], panels [ceil(columns / PANEL), depth, PANEL], out [rows, columns]. */
void turnout_linear(float *out, const float *x, const float *panels, long rows, long depth,
                    long columns, long x_stride, int threads) {
    long num_panels = (columns + PANEL - 1) / PANEL;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (long first = 0; first < rows; first += ROW_BLOCK) {
        long stop = rows - first < ROW_BLOCK ? rows : first + ROW_BLOCK;
#pragma omp for schedule(static) nowait
        for (long p = 0; p < num_panels; p++) {
            const float *panel = panels + p * depth * PANEL;
            long left = columns - p * PANEL;
            for (long row = first; row < stop; row += ROWS) {
                long count = stop - row < ROWS ? stop - row : ROWS;
                float *at = out + row * columns + p * PANEL;
                if (left < PANEL)
                    narrow(count, depth, x + row * x_stride, x_stride, panel, at, columns, left);
                else
                    product_of_up_to(count, 3, 1, 0, depth, x + row * x_stride, x_stride, panel,
                                     PANEL, at, columns);
            }
        }
    }
}
