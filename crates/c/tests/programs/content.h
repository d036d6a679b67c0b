// Bulk whose name says its checksum. For C and C++.
#ifndef CONTENT_H
#define CONTENT_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// FNV-1a.
static inline uint64_t checksum(const void *data, size_t length_bytes) {
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < length_bytes; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    return sum;
}

// Xorshift, from a seed that is not 0.
static inline void fill(void *data, size_t length_bytes, uint64_t seed) {
    unsigned char *bytes = (unsigned char *)data;
    for (size_t i = 0; i < length_bytes; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        bytes[i] = (unsigned char)seed;
    }
}

static inline void name_of(char name[64], const char *kind, const void *data, size_t length_bytes) {
    snprintf(name, 64, "%s.%016" PRIx64, kind, checksum(data, length_bytes));
}

static inline int is_whole(const char *name, const char *kind, const void *data, size_t length_bytes) {
    char should_be[64];
    name_of(should_be, kind, data, length_bytes);
    return strcmp(name, should_be) == 0;
}

#endif
