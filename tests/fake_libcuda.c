// A stand-in for the driver's library: answers the queries of kernels/_cuda_driver.py from environment variables.
// It has no call that makes a context, so a process that asked for one would fail to find the symbol.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) { return flags ? 1 : number("FAKE_CUDA_INIT", 0); }

int cuDriverGetVersion(int *version) {
    *version = number("FAKE_CUDA_VERSION", 13000);
    return 0;
}

int cuGetErrorString(int code, const char **text) {
    *text = code == 999 ? "unknown error" : NULL;
    return code == 999 ? 0 : 1;
}

int cuDeviceGetCount(int *count) {
    *count = number("FAKE_CUDA_COUNT", 1);
    return 0;
}

int cuDeviceGet(int *device, int index) {
    *device = index + 40;  // a handle need not be the ordinal
    return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
    const char *given = getenv("FAKE_CUDA_NAME");
    snprintf(name, size, "%s", given ? given : "NVIDIA H200");
    return device < 40;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)number("FAKE_CUDA_GIB", 140) << 30;
    return device < 40;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    memset(uuid, 0, 16);
    uuid[0] = 0x0a;
    uuid[15] = (unsigned char)(device - 40);
    return number("FAKE_CUDA_UUID_ERROR", 0);
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
        case 16: *value = number("FAKE_CUDA_SMS", 132); break;
        case 38: *value = 50 << 20; break;
        case 75: *value = 9; break;
        case 76: *value = 0; break;
        default: return 1;
    }
    return device < 40;
}
