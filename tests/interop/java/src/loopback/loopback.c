/* Preloaded into Java servers of 4.9, which have no bindAddress and would listen on every address of
   the machine: what binds to every address binds to the loopback address only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int descriptor, const struct sockaddr *address, socklen_t length) {
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
    struct sockaddr_in loopback;
    if (address != NULL && address->sa_family == AF_INET && length >= sizeof loopback) {
        memcpy(&loopback, address, sizeof loopback);
        if (loopback.sin_addr.s_addr == htonl(INADDR_ANY)) {
            loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            return next(descriptor, (struct sockaddr *)&loopback, sizeof loopback);
        }
    }
    return next(descriptor, address, length);
}
