/* tn_thread_pool.h - run one function on every thread of a pool. */
#ifndef TN_THREAD_POOL_H
#define TN_THREAD_POOL_H

#include "tnctl.h"

typedef void (*tn_job)(void *argument, int thread, int threads);

int tn_thread_pool_size(const tn_thread_pool *pool);

/* Calls job(argument, 0 .. threads - 1, threads), 0 on the caller's thread, and returns when all
 * have returned. Callers from several threads wait for each other. */
void tn_thread_pool_run(tn_thread_pool *pool, tn_job job, void *argument);

/* The part of 0 .. n - 1 that thread t of `threads` takes: [n*t/threads, n*(t+1)/threads). */
static inline uint64_t tn_part(uint64_t n, int t, int threads) {
    return n / (uint64_t)threads * (uint64_t)t +
           n % (uint64_t)threads * (uint64_t)t / (uint64_t)threads;
}

#endif
