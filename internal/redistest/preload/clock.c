/* Preloaded into a redis-server, this makes its wall clock as many nanoseconds fast
   as the file says that REDISTEST_CLOCK names. What measures only how much time has
   passed is left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t *fast;

__attribute__((constructor)) static void begin(void) {
	const char *path = getenv("REDISTEST_CLOCK");
	if (path == NULL) return;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) abort();
	void *at = mmap(NULL, sizeof *fast, PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) abort();
	close(fd);
	fast = at;
}

int clock_gettime(clockid_t id, struct timespec *t) {
	int failed = (int)syscall(SYS_clock_gettime, id, t);
	if (failed || fast == NULL || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return failed;
	int64_t now = (int64_t)t->tv_sec * SECOND + t->tv_nsec + *fast;
	t->tv_sec = now / SECOND;
	t->tv_nsec = now % SECOND;
	return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	(void)zone;
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now)) return (time_t)-1;
	if (t != NULL) *t = now.tv_sec;
	return now.tv_sec;
}
