/* The loops, for one type of numbers and one set of instructions: _native.c includes this several times.
 *
 * REAL is float or double, NAME(f) the name of function f in this variant, EXPONENTIAL(x) the exponential of x <= 0.
 * The symbols of routing are those of dynamic/README.md. Votes are (I, B, J, D): all votes of a child in an example are
 * one row.
 */

INLINE REAL NAME(dot)(const REAL *a, const REAL *b, const Size D) {
    REAL sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Size d = 0; d < D; d++) sum += a[d] * b[d];
    return sum;
}

INLINE void NAME(add_scaled)(REAL *to, const REAL *x, const REAL scale, const Size D) {
#pragma omp simd
    for (Size d = 0; d < D; d++) to[d] += scale * x[d];
}

/* |x|, and its squash factor f = |x|/(1 + |x|^2), 0 at 0; neither overflows where |x| does not. */
INLINE REAL NAME(length)(const REAL *x, const Size D, REAL *factor) {
    REAL largest = 0;
    for (Size d = 0; d < D; d++) {
        const REAL size = x[d] < 0 ? -x[d] : x[d];
        largest = size > largest ? size : largest;
    }
    REAL sum = 0;
    const REAL unit = largest > 0 ? largest : 1;
    for (Size d = 0; d < D; d++) sum += (x[d] / unit) * (x[d] / unit);
    const REAL norm = unit * (REAL)sqrt((double)sum);
    *factor = norm > 0 ? 1 / (norm + 1 / norm) : norm; /* NaN stays NaN */
    return norm;
}

/* Couplings c (J) from logits, which they may replace; leaky: with one more logit, zero. */
INLINE void NAME(couple)(REAL *c, const REAL *logits, const Size J, const int leaky) {
    REAL largest = leaky ? 0 : logits[0], sum = 0;
    for (Size j = 0; j < J; j++) largest = logits[j] > largest ? logits[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (Size j = 0; j < J; j++) {
        c[j] = EXPONENTIAL(logits[j] - largest);
        sum += c[j];
    }
    if (leaky) sum += EXPONENTIAL(-largest);
    const REAL scale = 1 / sum;
#pragma omp simd
    for (Size j = 0; j < J; j++) c[j] *= scale;
}

/* One routing iteration over all children of an example: s += sum of c (*) votes with c = softmax(votes . V). */
INLINE void NAME(pass)(
    const REAL *votes, const Size stride, const Size I, const Size J, const Size D, const int leaky,
    const REAL *V, REAL *s, REAL *c, REAL *couplings) {
    for (Size i = 0; i < I; i++) {
        const REAL *row = votes + i * stride;
        for (Size j = 0; j < J; j++) c[j] = NAME(dot)(row + j * D, V + j * D, D);
        NAME(couple)(c, c, J, leaky);
        for (Size j = 0; j < J; j++) NAME(add_scaled)(s + j * D, row + j * D, c[j], D);
        if (couplings) memcpy(couplings + i * J, c, J * sizeof(REAL));
    }
}

/* The same of the backward: columns (J of c, then J of dlogits) for each child, and dV += sum of dlogits (*) votes. */
INLINE void NAME(pass_backward)(
    const REAL *votes, const Size stride, const Size I, const Size J, const Size D, const int leaky,
    const REAL *V, const REAL *ds, const REAL *dcouplings, REAL *columns, const Size every, REAL *dV) {
    for (Size i = 0; i < I; i++) {
        const REAL *row = votes + i * stride;
        REAL *c = columns + i * every, *db = c + J, mean = 0;
        for (Size j = 0; j < J; j++) {
            c[j] = NAME(dot)(row + j * D, V + j * D, D);
            db[j] = NAME(dot)(row + j * D, ds + j * D, D);
        }
        if (dcouplings)
            for (Size j = 0; j < J; j++) db[j] += dcouplings[i * J + j];
        NAME(couple)(c, c, J, leaky);
#pragma omp simd reduction(+ : mean)
        for (Size j = 0; j < J; j++) mean += c[j] * db[j];
#pragma omp simd
        for (Size j = 0; j < J; j++) db[j] = c[j] * (db[j] - mean);
        for (Size j = 0; j < J; j++) NAME(add_scaled)(dV + j * D, row + j * D, db[j], D);
    }
}

/* Votes' gradients in the place of the votes: share*ds_1 + sum over t of c_t (*) ds_t + dlogits_t (*) V_t. */
INLINE void NAME(finish)(
    REAL *votes, const Size stride, const Size I, const Size J, const Size D, const Size R, const REAL share,
    const REAL *V, const REAL *ds, const REAL *columns) {
    for (Size i = 0; i < I; i++) {
        REAL *row = votes + i * stride;
        for (Size j = 0; j < J; j++) {
            REAL *to = row + j * D;
#pragma omp simd
            for (Size d = 0; d < D; d++) to[d] = share * ds[j * D + d];
            for (Size t = 1; t < R; t++) {
                const REAL *column = columns + (i * (R - 1) + t - 1) * 2 * J + j;
                NAME(add_scaled)(to, ds + (t * J + j) * D, column[0], D);
                NAME(add_scaled)(to, V + (t * J + j) * D, column[J], D);
            }
        }
    }
}

/* Loops over the values of a pose are unrolled for the usual numbers of them. */
#define FOR_EACH_SIZE(D, CALL)     \
    switch (D) {                   \
        case 4: CALL(4); break;    \
        case 8: CALL(8); break;    \
        case 16: CALL(16); break;  \
        case 32: CALL(32); break;  \
        default: CALL(D);          \
    }

/* Poses (B, J, D), sums (R, B, J, D) and couplings (B, I, J) or NULL of examples from <= b < to. */
static void NAME(forward)(
    const void *votes_, const void *bias_, void *sums_, void *poses_, void *couplings_, void *memory_,
    const Size from, const Size to, const Size B, const Size I, const Size J, const Size D, const Size R,
    const int leaky, const double inverse_temperature) {
    const REAL *votes = votes_, *bias = bias_;
    REAL *sums = sums_, *poses = poses_, *couplings = couplings_;
    const Size row = J * D, stride = B * row;
    REAL *V = memory_, *block = V + row, *c = block + row;
    const REAL share = (REAL)1 / (J + leaky);
    for (Size b = from; b < to; b++) {
        const REAL *example = votes + b * row;
        memset(V, 0, row * sizeof(REAL));
        for (Size t = 0; t < R; t++) {
            REAL *s = sums + (t * B + b) * row, *pose = poses + b * row;
            memcpy(s, bias, row * sizeof(REAL));
            for (Size start = 0; start < I; start += BLOCK) { /* few terms in each sum keep rounding small */
                const Size count = I - start < BLOCK ? I - start : BLOCK;
                const REAL *first = example + start * stride;
                REAL *coupled = couplings && t == R - 1 ? couplings + (b * I + start) * J : NULL;
                memset(block, 0, row * sizeof(REAL));
                if (t == 0) {
                    for (Size i = 0; i < count; i++) NAME(add_scaled)(block, first + i * stride, 1, row);
                    NAME(add_scaled)(s, block, share, row);
                    for (Size n = 0; coupled && n < count * J; n++) coupled[n] = share;
                    continue;
                }
#define CALL(D) NAME(pass)(first, stride, count, J, D, leaky, V, block, c, coupled)
                FOR_EACH_SIZE(D, CALL)
#undef CALL
                NAME(add_scaled)(s, block, 1, row);
            }
            for (Size j = 0; j < J; j++) {
                REAL factor;
                NAME(length)(s + j * D, D, &factor);
                for (Size d = 0; d < D; d++) pose[j * D + d] = factor * s[j * D + d];
            }
            NAME(add_scaled)(V, pose, (REAL)inverse_temperature, row);
        }
    }
}

/* Gradients of the votes in their place, and dbias (J, D) added to, from grad (B, J, D) and dcouplings or NULL. */
static void NAME(backward)(
    void *votes_, const void *sums_, const void *grad_, const void *dcouplings_, void *dbias_, void *memory_,
    const Size from, const Size to, const Size B, const Size I, const Size J, const Size D, const Size R,
    const int leaky, const double inverse_temperature) {
    REAL *votes = votes_, *dbias = dbias_;
    const REAL *sums = sums_, *grad = grad_, *dcouplings = dcouplings_;
    const Size row = J * D, stride = B * row, every = 2 * J * (R - 1);
    REAL *V = memory_, *ds = V + R * row, *dV = ds + R * row, *block = dV + row, *columns = block + row;
    const REAL share = (REAL)1 / (J + leaky);
    for (Size b = from; b < to; b++) {
        REAL *example = votes + b * row;
        memset(V, 0, row * sizeof(REAL)); /* V_1, which no iteration uses */
        for (Size t = 1; t < R; t++)
            for (Size j = 0; j < J; j++) {
                const REAL *s = sums + ((t - 1) * B + b) * row + j * D;
                REAL factor, *at = V + t * row + j * D;
                NAME(length)(s, D, &factor);
                factor *= (REAL)inverse_temperature;
                for (Size d = 0; d < D; d++) at[d] = at[d - row] + factor * s[d];
            }
        memset(dV, 0, row * sizeof(REAL));
        for (Size t = R - 1; t >= 0; t--) {
            const REAL *dv = t == R - 1 ? grad + b * row : dV;
            const REAL scale = t == R - 1 ? 1 : (REAL)inverse_temperature;
            REAL *at = ds + t * row;
            for (Size j = 0; j < J; j++) {
                const REAL *s = sums + (t * B + b) * row + j * D;
                REAL factor;
                const REAL norm = NAME(length)(s, D, &factor), unit = norm > 0 ? norm : 1;
                REAL along = 0;
                for (Size d = 0; d < D; d++) along += s[d] / unit * (scale * dv[j * D + d]);
                along *= factor - 2 * norm * factor * factor; /* f cos 2 phi */
                for (Size d = 0; d < D; d++) {
                    at[j * D + d] = factor * (scale * dv[j * D + d]) + along * (s[d] / unit);
                    dbias[j * D + d] += at[j * D + d];
                }
            }
            if (t == 0) break;
            for (Size start = 0; start < I; start += BLOCK) {
                const Size count = I - start < BLOCK ? I - start : BLOCK;
                const REAL *first = example + start * stride;
                const REAL *given = dcouplings && t == R - 1 ? dcouplings + (b * I + start) * J : NULL;
                REAL *column = columns + start * every + (t - 1) * 2 * J;
                memset(block, 0, row * sizeof(REAL));
#define CALL(D) NAME(pass_backward)(first, stride, count, J, D, leaky, V + t * row, at, given, column, every, block)
                FOR_EACH_SIZE(D, CALL)
#undef CALL
                NAME(add_scaled)(dV, block, 1, row);
            }
        }
#define CALL(D) NAME(finish)(example, stride, I, J, D, R, share, V, ds, columns)
        FOR_EACH_SIZE(D, CALL)
#undef CALL
    }
}

#undef FOR_EACH_SIZE

/* Votes (I, X) of one example from children (I, K) and a weight (I, X, K), X = J*D. */
INLINE void NAME(product)(
    const REAL *u, const REAL *weight, REAL *votes, const Size I, const Size X, const Size K) {
    for (Size i = 0; i < I; i++) {
        const REAL *child = u + i * K, *matrix = weight + i * X * K;
        REAL *row = votes + i * X;
#pragma omp simd
        for (Size x = 0; x < X; x++) {
            REAL sum = 0;
            for (Size k = 0; k < K; k++) sum += matrix[x * K + k] * child[k];
            row[x] = sum;
        }
    }
}

static void NAME(votes)(
    const void *u, const void *weight, void *votes, const Size I, const Size X, const Size K) {
    switch (K) {
        case 4: NAME(product)(u, weight, votes, I, X, 4); break;
        case 8: NAME(product)(u, weight, votes, I, X, 8); break;
        case 16: NAME(product)(u, weight, votes, I, X, 16); break;
        default: NAME(product)(u, weight, votes, I, X, K);
    }
}

/* Capsules (B*T, X, D) from maps (B*T, D, X): squash(scale * maps + bias), bias (T, D) or NULL. */
static void NAME(squash_maps)(
    const void *maps_, const void *bias_, void *capsules_, const Size examples, const Size T,
    const Size D, const Size X, const double scale) {
    for (Size n = 0; n < examples * T; n++) {
        const REAL *map = (const REAL *)maps_ + n * D * X, *bias = bias_ ? (const REAL *)bias_ + n % T * D : NULL;
        for (Size x = 0; x < X; x++) {
            REAL factor, *capsule = (REAL *)capsules_ + (n * X + x) * D;
            for (Size d = 0; d < D; d++) capsule[d] = (REAL)scale * map[d * X + x] + (bias ? bias[d] : 0);
            NAME(length)(capsule, D, &factor);
            for (Size d = 0; d < D; d++) capsule[d] *= factor;
        }
    }
}
