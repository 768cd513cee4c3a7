/* Small capsule operations on a CPU, compiled once for each type and set of instructions.
 *
 * native.py calls this where it is installed: one call in place of ten or forty of PyTorch's operations. A call computes
 * in the calling thread and does not hold Python's lock meanwhile. Pointers come from PyTorch as integers.
 */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#define BLOCK 64 /* children that are summed up before their sum is added to the whole */

/* exp(x) for x <= 0, without branches, within 2 units in the last place; 0 below -87. */
INLINE float exponential(const float x) {
    const int32_t n = (int32_t)(x < -87.0f ? -126.5f : x * 1.44269504f - 0.5f);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* |r| <= ln(2)/2 */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : p * power;
}

typedef Py_ssize_t Size;
typedef void forward_t(
    const void *, const void *, void *, void *, void *, void *, Size, Size, Size, Size, Size, Size, Size, int, double);
typedef void backward_t(
    void *, const void *, const void *, const void *, void *, void *, Size, Size, Size, Size, Size, Size, Size, int,
    double);
typedef void votes_t(const void *, const void *, void *, Size, Size, Size);
typedef void squash_maps_t(const void *, const void *, void *, Size, Size, Size, Size, double);

#define REAL float
#define EXPONENTIAL exponential
#define NAME(f) f##_float
#include "_native_template.h"
#undef NAME
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(f) f##_float_avx2
#include "_native_template.h"
#undef NAME
#pragma GCC pop_options
#endif
#undef EXPONENTIAL
#undef REAL

#define REAL double
#define EXPONENTIAL exp
#define NAME(f) f##_double
#include "_native_template.h"
#undef NAME
#ifdef HAS_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(f) f##_double_avx2
#include "_native_template.h"
#undef NAME
#pragma GCC pop_options
#endif

static forward_t *forwards[2] = {forward_float, forward_double};
static backward_t *backwards[2] = {backward_float, backward_double};
static votes_t *votes_of[2] = {votes_float, votes_double};
static squash_maps_t *squash_maps_of[2] = {squash_maps_float, squash_maps_double};

enum { MOST = 16 };

/* Read integers: pointers, sizes and flags. */
static int parse(PyObject *const *arguments, const Py_ssize_t given, const Py_ssize_t expected, long long *into) {
    if (given != expected) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected, given);
        return 0;
    }
    for (Py_ssize_t n = 0; n < expected; n++) {
        into[n] = PyLong_AsLongLong(arguments[n]);
        if (into[n] == -1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

/* The same, with a number last that need not be whole. */
static int parse_with_scale(
    PyObject *const *arguments, const Py_ssize_t given, const Py_ssize_t expected, long long *into, double *scale) {
    if (given != expected) return parse(arguments, given, expected, into);
    if (!parse(arguments, expected - 1, expected - 1, into)) return 0;
    *scale = PyFloat_AsDouble(arguments[expected - 1]);
    return !PyErr_Occurred();
}

static void *at(const long long number) { return (void *)(intptr_t)number; }

static PyObject *forward(PyObject *module, PyObject *const *arguments, const Py_ssize_t count) {
    long long a[MOST];
    double inverse_temperature;
    if (!parse_with_scale(arguments, count, 16, a, &inverse_temperature)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    forwards[a[0] != 0](at(a[1]), at(a[2]), at(a[3]), at(a[4]), at(a[5]), at(a[6]), a[7], a[8], a[9], a[10], a[11],
                        a[12], a[13], (int)a[14], inverse_temperature);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *backward(PyObject *module, PyObject *const *arguments, const Py_ssize_t count) {
    long long a[MOST];
    double inverse_temperature;
    if (!parse_with_scale(arguments, count, 16, a, &inverse_temperature)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    backwards[a[0] != 0](at(a[1]), at(a[2]), at(a[3]), at(a[4]), at(a[5]), at(a[6]), a[7], a[8], a[9], a[10], a[11],
                         a[12], a[13], (int)a[14], inverse_temperature);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *votes(PyObject *module, PyObject *const *arguments, const Py_ssize_t count) {
    long long a[MOST];
    if (!parse(arguments, count, 7, a)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    votes_of[a[0] != 0](at(a[1]), at(a[2]), at(a[3]), a[4], a[5], a[6]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *squash_maps(PyObject *module, PyObject *const *arguments, const Py_ssize_t count) {
    long long a[MOST];
    double scale;
    if (!parse_with_scale(arguments, count, 9, a, &scale)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    squash_maps_of[a[0] != 0](at(a[1]), at(a[2]), at(a[3]), a[4], a[5], a[6], a[7], scale);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL,
     "forward(double, votes, bias, sums, poses, couplings, memory, from, to, B, I, J, D, R, leaky, inverse_temperature)"},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL,
     "backward(double, votes, sums, grad, dcouplings, dbias, memory, from, to, B, I, J, D, R, leaky, inverse_temperature)"},
    {"votes", (PyCFunction)(void (*)(void))votes, METH_FASTCALL, "votes(double, u, weight, votes, I, X, K)"},
    {"squash_maps", (PyCFunction)(void (*)(void))squash_maps, METH_FASTCALL,
     "squash_maps(double, maps, bias, capsules, B, T, D, X, scale)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
#ifdef HAS_AVX2
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        forwards[0] = forward_float_avx2, forwards[1] = forward_double_avx2;
        backwards[0] = backward_float_avx2, backwards[1] = backward_double_avx2;
        votes_of[0] = votes_float_avx2, votes_of[1] = votes_double_avx2;
        squash_maps_of[0] = squash_maps_float_avx2, squash_maps_of[1] = squash_maps_double_avx2;
    }
#endif
    return PyModule_Create(&definition);
}
