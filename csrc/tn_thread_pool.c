/* tn_thread_pool.c - a pool of threads for jobs of 20 to 2000 microseconds.
 *
 * Calls come in bursts (find, gather; accumulate, apply) with a long TensorFlow step between them.
 * Waking a sleeping thread costs about as much as a small job, and a spinning thread takes a core
 * from TensorFlow. So workers spin exactly as long as the next job is near:
 *
 *     caller    hold  find  gather  release   TensorFlow's step   hold  accumulate  apply  release
 *     worker    wakes [job] spin [job] sleeps . . . . . . . . . . wakes [job]  spin [job]  sleeps
 *
 * Without tn_thread_pool_hold they spin for SPINS rounds after a job (a few microseconds) and then
 * sleep. With more threads than CPUs nobody spins: a spinning thread would keep a working one off
 * its CPU, and the job would take a scheduler's time slice instead of microseconds.
 *
 * Jobs are numbered by `generation`. A worker has done all jobs up to `seen` and waits for the
 * number to differ. No job can be missed, for the next one starts only after every worker has
 * finished this one (`running` is 0), and no wake-up can be missed, for a worker goes to sleep
 * under `lock` after it has looked at the generation again, and the caller changes it under `lock`.
 */
#include "tn_thread_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tn_cpu.h"
#include "tn_memory.h"

#define MAX_THREADS 64
#define SPINS 100

struct tn_thread_pool {
    int threads, started, spins;
    pthread_t handles[MAX_THREADS];
    pthread_mutex_t call; /* held by the one caller whose job runs */
    pthread_mutex_t lock; /* guards job, argument, stop and both conditions */
    pthread_cond_t wake, done;
    tn_job job;
    void *argument;
    int stop;
    atomic_uint generation; /* counts jobs; a worker waits for it to change */
    atomic_int running;     /* workers that have not finished the job */
    atomic_int held;        /* workers do not sleep */
};

typedef struct {
    tn_thread_pool *pool;
    int thread;
} worker_start;

/* Spins for a while, or as long as the pool is held. Returns whether there is a new job. */
static int spin_for_job(tn_thread_pool *pool, unsigned seen) {
    for (int i = 0; i < pool->spins || (pool->spins > 0 && atomic_load(&pool->held)); i++) {
        if (atomic_load(&pool->generation) != seen) {
            return 1;
        }
        TN_PAUSE();
    }
    return 0;
}

/* Waits until the generation is no longer `seen`. Returns 0 when the pool stops. */
static int wait_for_job(tn_thread_pool *pool, unsigned seen, tn_job *job, void **argument) {
    while (!spin_for_job(pool, seen)) {
        pthread_mutex_lock(&pool->lock);
        while (atomic_load(&pool->generation) == seen && !pool->stop &&
               (pool->spins == 0 || !atomic_load(&pool->held))) {
            pthread_cond_wait(&pool->wake, &pool->lock);
        }
        int done = pool->stop || atomic_load(&pool->generation) != seen;
        pthread_mutex_unlock(&pool->lock);
        if (done) {
            break;
        }
    }
    /* A worker that saw the new generation while spinning reads the job under the lock too: the
     * caller wrote it before, under the same lock. */
    pthread_mutex_lock(&pool->lock);
    int go = !pool->stop;
    *job = pool->job;
    *argument = pool->argument;
    pthread_mutex_unlock(&pool->lock);
    return go;
}

/* The main function of a worker thread: one job after the other until the pool stops. `seen` is
 * the generation of the last job it did; no generation is skipped, because the caller starts the
 * next job only after all workers have finished this one. */
static void *work(void *argument) {
    worker_start start = *(worker_start *)argument;
    TN_FREE(argument);
    tn_thread_pool *pool = start.pool;
    tn_job job;
    void *job_argument;
    for (unsigned seen = 0; wait_for_job(pool, seen, &job, &job_argument); seen++) {
        job(job_argument, start.thread, pool->threads);
        /* The last one to finish wakes the caller. The lock is taken so that the signal cannot come
         * between the caller's last look at `running` and its going to sleep. */
        if (atomic_fetch_sub(&pool->running, 1) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
    return NULL;
}

int tn_thread_pool_size(const tn_thread_pool *pool) {
    return pool->threads;
}

int tn_thread_pool_new(int threads, tn_thread_pool **out) {
    if (threads < 1 || threads > MAX_THREADS) {
        return TN_BAD_VALUE;
    }
    tn_thread_pool *pool = TN_CALLOC(1, sizeof *pool);
    if (pool == NULL) {
        return TN_NO_MEMORY;
    }
    pool->threads = threads;
    /* With more threads than CPUs a spinning one would keep a working one off its CPU. */
    pool->spins = threads <= sysconf(_SC_NPROCESSORS_ONLN) ? SPINS : 0;
    pthread_mutex_init(&pool->call, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int thread = 1; thread < threads; thread++) {
        worker_start *start = TN_CALLOC(1, sizeof *start);
        int failed = start == NULL;
        if (!failed) {
            *start = (worker_start){pool, thread};
            failed = pthread_create(&pool->handles[thread], NULL, work, start) != 0;
        }
        if (failed) {
            int code = start == NULL ? TN_NO_MEMORY : TN_NO_THREAD;
            TN_FREE(start);
            tn_thread_pool_free(pool);
            return code;
        }
        pool->started = thread;
    }
    *out = pool;
    return TN_OK;
}

void tn_thread_pool_free(tn_thread_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->stop = 1;
    atomic_store(&pool->held, 0);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int thread = 1; thread <= pool->started; thread++) {
        pthread_join(pool->handles[thread], NULL);
    }
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->call);
    TN_FREE(pool);
}

void tn_thread_pool_hold(tn_thread_pool *pool, int held) {
    atomic_store(&pool->held, held);
    if (held && pool->threads > 1) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

/* The caller is thread 0: it works too, and one thread needs no pool. The atomic generation is
 * changed last, after the job was written, for spinning workers look at it without the lock. What
 * the workers wrote is visible to the caller when it returns: each decrements `running` after its
 * work, and the caller has read 0 there. */
void tn_thread_pool_run(tn_thread_pool *pool, tn_job job, void *argument) {
    if (pool->threads == 1) {
        job(argument, 0, 1);
        return;
    }
    pthread_mutex_lock(&pool->call);
    pthread_mutex_lock(&pool->lock);
    pool->job = job;
    pool->argument = argument;
    atomic_store(&pool->running, pool->threads - 1);
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    job(argument, 0, pool->threads);

    /* Parts of a job are of equal size, so the others finish soon; only then does sleeping pay. */
    for (int i = 0; i < 10 * pool->spins && atomic_load(&pool->running) > 0; i++) {
        TN_PAUSE();
    }
    if (atomic_load(&pool->running) > 0) {
        pthread_mutex_lock(&pool->lock);
        while (atomic_load(&pool->running) > 0) {
            pthread_cond_wait(&pool->done, &pool->lock);
        }
        pthread_mutex_unlock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->call);
}
