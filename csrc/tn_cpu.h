/* tn_cpu.h - hints to the compiler about CPUs and branches. */
#ifndef TN_CPU_H
#define TN_CPU_H

/* TN_CLONES in front of a hot loop builds it for several x86-64 levels; the loader picks one when
 * the library loads. Without fused multiply-add all of them compute the same bits. The sanitizers
 * run before the loader's choice is made, so they build one level only. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(TN_NO_CLONES)
#define TN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TN_CLONES
#endif

#define TN_INLINE static inline __attribute__((always_inline))
#define TN_LIKELY(x) __builtin_expect(!!(x), 1)
#define TN_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TN_PREFETCH(address) __builtin_prefetch(address)
#define TN_PREFETCH_WRITE(address) __builtin_prefetch(address, 1)

#if defined(__x86_64__) || defined(__i386__)
#define TN_PAUSE() __builtin_ia32_pause()
#else
#define TN_PAUSE() ((void)0)
#endif

#endif
