/* Causal attention over the paged cache, with the running softmax of FlashAttention.
 *
 * A task is one sequence, one kv head and up to QUERIES rows, a row being one query head of one
 * token. It walks the context in tiles that begin at multiples of TILE slots, so what a row meets,
 * and in which order, depends on its own position alone: not on the other rows, the batch, the
 * chunk or the threads. Slots that a row does not see get the weight 0, which changes no bit.
 *
 * Source: Dao, "FlashAttention-2", 2023.
 */
#include "product.h"

#define TILE 48    /* slots: a multiple of a panel for every width of vector */
#define QUERIES 48 /* rows: 16 tokens of 3 heads; a tile of keys is brought in once for all */
#define MAX_HEAD_DIM 256

long turnout_max_head_dim(void) { return MAX_HEAD_DIM; }

struct step {
    float *out;                         /* [num_tokens, num_heads, head_dim] */
    const float *query;                 /* the same, token_stride apart */
    const float *keys, *values;         /* [num_blocks, num_kv_heads, block_size, head_dim] */
    const int *block_tables;            /* [num_seqs, table_stride] */
    const int *first_rows, *contexts;   /* [num_seqs + 1], [num_seqs] */
    long table_stride, token_stride, num_kv_heads, group, head_dim, block_size;
    long window; /* a token sees that many, itself the last; 0: all */
    float scale;
};

struct task {
    float query[QUERIES * MAX_HEAD_DIM]; /* [rows, head_dim], scaled */
    float keys[MAX_HEAD_DIM * TILE];     /* [head_dim, TILE] */
    float values[TILE * MAX_HEAD_DIM];   /* [TILE, padded_dim] */
    float weights[QUERIES * TILE];       /* [rows, TILE]: scores, then their exponentials */
    float sums[QUERIES * MAX_HEAD_DIM];  /* [rows, padded_dim] */
    float greatest[QUERIES], total[QUERIES];
    long position[QUERIES];
    long rows, padded_dim; /* head_dim up to a multiple of LANES */
};

/* Four rows of head_dim become four columns of keys. */
INLINE void transpose(float *to, const float *const from[4], long head_dim) {
    long d = 0;
#if defined(__x86_64__)
    for (; d + 4 <= head_dim; d += 4) {
        __m128 a = _mm_loadu_ps(from[0] + d), b = _mm_loadu_ps(from[1] + d);
        __m128 c = _mm_loadu_ps(from[2] + d), e = _mm_loadu_ps(from[3] + d);
        _MM_TRANSPOSE4_PS(a, b, c, e);
        _mm_storeu_ps(to + d * TILE, a);
        _mm_storeu_ps(to + (d + 1) * TILE, b);
        _mm_storeu_ps(to + (d + 2) * TILE, c);
        _mm_storeu_ps(to + (d + 3) * TILE, e);
    }
#endif
    for (; d < head_dim; d++)
        for (int i = 0; i < 4; i++) to[d * TILE + i] = from[i][d];
}

/* Brings `live` slots from `start` on together: keys as columns, values as rows. */
static void gather(struct task *t, const struct step *s, long sequence, long kv_head, long start,
                   long live) {
    const int *table = s->block_tables + sequence * s->table_stride;
    const float *key[TILE];
    long block = start / s->block_size, offset = start % s->block_size;
    for (long slot = 0; slot < live; slot++) {
        long row = (table[block] * s->num_kv_heads + kv_head) * s->block_size + offset;
        key[slot] = s->keys + row * s->head_dim;
        memcpy(t->values + slot * t->padded_dim, s->values + row * s->head_dim,
               s->head_dim * sizeof(float));
        if (++offset == s->block_size) block++, offset = 0;
    }
    for (long slot = live; slot % 4; slot++) key[slot] = key[live - 1];
    for (long slot = 0; slot < live; slot += 4) transpose(t->keys + slot, key + slot, s->head_dim);
}

static void score(struct task *t, long head_dim) {
    for (long row = 0; row < t->rows; row += ROWS) {
        long count = t->rows - row < ROWS ? t->rows - row : ROWS;
        for (long slot = 0; slot < TILE; slot += 3 * LANES)
            product_of_up_to(count, 3, 0, 0, head_dim, t->query + row * head_dim, head_dim,
                             t->keys + slot, TILE, t->weights + row * TILE + slot, TILE);
    }
}

/* A row's scores become weights; what it has summed so far is scaled to the new greatest score. */
static void weigh(struct task *t, long row, long start, long window) {
    float *weights = t->weights + row * TILE;
    long last = t->position[row] - start, first = window ? last - window + 1 : 0;
    ivec lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    const vec hidden = splat(-__builtin_inff());
    vec highest = splat(t->greatest[row]);
    for (int i = 0; i < TILE; i += LANES) {
        ivec seen = (lane + i <= (int)(last < TILE ? last : TILE))
                    & (lane + i >= (int)(first > 0 ? first : 0));
        vec scores = where(seen, load(weights + i), hidden);
        highest = where(scores > highest, scores, highest);
        store(weights + i, scores);
    }
    float greatest = greatest_lane(highest);
    /* Nothing seen yet: any number will do as the greatest, but -inf - -inf is none. */
    vec base = splat(greatest == -__builtin_inff() ? 0.0f : greatest);
    vec total = splat(0.0f);
    for (int i = 0; i < TILE; i += LANES) {
        vec weight = exponential(load(weights + i) - base);
        total += weight;
        store(weights + i, weight);
    }
    float decay = exponential(splat(t->greatest[row]) - base)[0];
    t->total[row] = t->total[row] * decay + sum_of_lanes(total);
    t->greatest[row] = greatest;
    for (long d = 0; d < t->padded_dim; d += LANES)
        store(t->sums + row * t->padded_dim + d, load(t->sums + row * t->padded_dim + d) * decay);
}

static void add_values(struct task *t, long live) {
    for (long row = 0; row < t->rows; row += ROWS) {
        long count = t->rows - row < ROWS ? t->rows - row : ROWS;
        const float *weights = t->weights + row * TILE;
        float *sums = t->sums + row * t->padded_dim;
        long d = 0;
        for (; d + 2 * LANES <= t->padded_dim; d += 2 * LANES)
            product_of_up_to(count, 2, 0, 1, live, weights, TILE, t->values + d, t->padded_dim,
                             sums + d, t->padded_dim);
        if (d < t->padded_dim)
            product_of_up_to(count, 1, 0, 1, live, weights, TILE, t->values + d, t->padded_dim,
                             sums + d, t->padded_dim);
    }
}

/* Where a row of the task lies in query and out: the first row is row `first` of the sequence. */
static long token_of(const struct step *s, long sequence, long row) {
    return s->first_rows[sequence] + row / s->group;
}

static void begin(struct task *t, const struct step *s, long sequence, long kv_head, long first) {
    long query_len = s->first_rows[sequence + 1] - s->first_rows[sequence];
    t->padded_dim = (s->head_dim + LANES - 1) / LANES * LANES;
    for (long row = 0; row < t->rows; row++) {
        const float *from = s->query + token_of(s, sequence, first + row) * s->token_stride
                            + (kv_head * s->group + (first + row) % s->group) * s->head_dim;
        for (long d = 0; d < s->head_dim; d++) t->query[row * s->head_dim + d] = from[d] * s->scale;
        t->position[row] = s->contexts[sequence] - query_len + (first + row) / s->group;
        t->greatest[row] = -__builtin_inff();
        t->total[row] = 0.0f;
    }
    memset(t->sums, 0, t->rows * t->padded_dim * sizeof(float));
    memset(t->keys, 0, s->head_dim * TILE * sizeof(float));
    memset(t->values, 0, TILE * t->padded_dim * sizeof(float));
}

static void end(const struct task *t, const struct step *s, long sequence, long kv_head,
                long first) {
    for (long row = 0; row < t->rows; row++) {
        long head = kv_head * s->group + (first + row) % s->group;
        long place = token_of(s, sequence, first + row) * s->num_kv_heads * s->group + head;
        float *to = s->out + place * s->head_dim;
        for (long d = 0; d < s->head_dim; d++)
            to[d] = t->sums[row * t->padded_dim + d] / t->total[row];
    }
}

static void attend(const struct step *s, long sequence, long kv_head, long first, long rows) {
    struct task t;
    t.rows = rows;
    begin(&t, s, sequence, kv_head, first);
    long last = t.position[rows - 1], earliest = t.position[0] - s->window + 1;
    long start = s->window && earliest > 0 ? earliest / TILE * TILE : 0;
    for (; start <= last; start += TILE) {
        long live = last + 1 - start < TILE ? last + 1 - start : TILE;
        gather(&t, s, sequence, kv_head, start, live);
        /* What no row sees may have been given back, and be anything: 0 times NaN is NaN. */
        long unseen = s->window && earliest > start ? earliest - start : 0;
        memset(t.values, 0, (unseen < live ? unseen : live) * t.padded_dim * sizeof(float));
        score(&t, s->head_dim);
        for (long row = 0; row < rows; row++) weigh(&t, row, start, s->window);
        add_values(&t, live);
    }
    end(&t, s, sequence, kv_head, first);
}

/* See struct step. No head_dim above MAX_HEAD_DIM. */
void turnout_paged_attention(float *out, const float *query, const float *keys, const float *values,
                             const int *block_tables, const int *first_rows, const int *contexts,
                             long num_seqs, long table_stride, long token_stride,
                             long num_kv_heads, long group, long head_dim, long block_size,
                             long window, float scale, int threads) {
    const struct step step = {
        out, query, keys, values, block_tables, first_rows, contexts, table_stride, token_stride,
        num_kv_heads, group, head_dim, block_size, window, scale,
    };
    long most_rows = 0;
    for (long i = 0; i < num_seqs; i++) {
        long rows = (first_rows[i + 1] - first_rows[i]) * group;
        most_rows = rows > most_rows ? rows : most_rows;
    }
    /* The last rows of a prefill see most, so they begin. */
    long most_tasks = (most_rows + QUERIES - 1) / QUERIES;
#pragma omp parallel for collapse(3) schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long nth = most_tasks - 1; nth >= 0; nth--)
        for (long sequence = 0; sequence < num_seqs; sequence++)
            for (long kv_head = 0; kv_head < num_kv_heads; kv_head++) {
                long first = nth * QUERIES;
                long left = (first_rows[sequence + 1] - first_rows[sequence]) * group - first;
                if (left > 0)
                    attend(&step, sequence, kv_head, first, left < QUERIES ? left : QUERIES);
            }
}
