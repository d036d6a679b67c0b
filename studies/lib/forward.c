/* The least that an agent in the path costs: reads packets from a TUN and sends them on by a raw socket, deciding nothing.
 *
 *     cc -O2 -o forward forward.c && ./forward tun0 eth0
 *
 * Makes the TUN (the first argument) and sends by the interface (the second). Whoever runs it brings the TUN up and sets
 * routes. For studies/protect.py, which compares the agent with it. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **words) {
    static unsigned char packet[65536];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct sched_param first = {.sched_priority = 1};
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK), out = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
    struct pollfd readable = {.fd = tun, .events = POLLIN};
    if (count != 3 || strlen(words[1]) >= IFNAMSIZ || strlen(words[2]) >= IFNAMSIZ) {
        fputs("usage: forward TUN INTERFACE\n", stderr);
        return 2;
    }
    strcpy(request.ifr_name, words[1]);
    if (ioctl(tun, TUNSETIFF, &request) || setsockopt(out, SOL_SOCKET, SO_BINDTODEVICE, words[2], strlen(words[2]) + 1)) {
        perror("forward");
        return 1;
    }
    /* As the agent's thread has it. */
    sched_setscheduler(0, SCHED_RR, &first);
    for (;;) {
        ssize_t bytes;
        poll(&readable, 1, -1);
        while ((bytes = read(tun, packet, sizeof packet)) > 0) {
            memcpy(&to.sin_addr, packet + 16, 4);
            sendto(out, packet, bytes, 0, (struct sockaddr *)&to, sizeof to);
        }
    }
}
