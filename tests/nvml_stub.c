/* A stand-in for libnvidia-ml.so.1: answers from the script in $NVML_SCRIPT, so that the real pynvml runs without a GPU.
   A line is `FUNCTION DEVICE ANSWER ANSWER ...`, an answer for each call; the last one stays. `!15` is return code 15,
   `a,b,c` are numbers in the order of the call's structure, `x4f6b` is text in hex. What is not there is not supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINES 256
#define OK 0
#define NOT_SUPPORTED 3
typedef unsigned int uint;
typedef unsigned long long ull;

static struct { char name[64]; int device; char *answers; int calls; } script[LINES];
static int lines = -1;

static void load(void) {
    char buffer[4096];
    const char *path = getenv("NVML_SCRIPT");
    FILE *file = path ? fopen(path, "r") : NULL;
    lines = 0;
    while (file && lines < LINES && fgets(buffer, sizeof buffer, file)) {
        int used = 0;
        if (sscanf(buffer, "%63s %d %n", script[lines].name, &script[lines].device, &used) < 2) continue;
        buffer[strcspn(buffer, "\n")] = 0;
        script[lines++].answers = strdup(buffer + used);
    }
    if (file) fclose(file);
}

/* The next answer of a function as numbers or text; returns NVML's code. */
static int answer(const char *name, int device, ull *numbers, int wanted, char *text, uint size) {
    if (lines < 0) load();
    for (int i = 0; i < lines; i++) {
        if (strcmp(script[i].name, name) || script[i].device != device) continue;
        char word[1024] = "", *copy = strdup(script[i].answers), *save, *part = strtok_r(copy, " ", &save);
        for (int n = 0; part; part = strtok_r(NULL, " ", &save)) {
            snprintf(word, sizeof word, "%s", part);
            if (n++ == script[i].calls) break;
        }
        free(copy);
        script[i].calls++;
        if (word[0] == '!') return atoi(word + 1);
        if (word[0] == 'x' && text) {
            uint n = 0, byte;
            for (char *p = word + 1; n + 1 < size && sscanf(p, "%2x", &byte) == 1; p += 2) text[n++] = (char)byte;
            text[n] = 0;
            return OK;
        }
        char *p = word;
        for (int n = 0; n < wanted; n++) {
            numbers[n] = strtoull(p, &p, 10);
            if (*p == ',') p++;
        }
        return OK;
    }
    return NOT_SUPPORTED;
}

static int index_of(void *device) { return (int)(size_t)device - 1; }

static int one(const char *name, void *device, uint *out) {
    ull number = 0;
    int code = answer(name, index_of(device), &number, 1, NULL, 0);
    if (code == OK) *out = (uint)number;
    return code;
}

int nvmlInitWithFlags(uint flags) { ull n; int code = answer("nvmlInit", -1, &n, 1, NULL, 0); (void)flags; return code == NOT_SUPPORTED ? OK : code; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, sizeof text, "stub code %d", code); return text; }
int nvmlDeviceGetCount_v2(uint *count) { ull n = 0; int code = answer("nvmlDeviceGetCount", -1, &n, 1, NULL, 0); *count = (uint)n; return code; }
int nvmlDeviceGetHandleByIndex_v2(uint index, void **device) { *device = (void *)(size_t)(index + 1); return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (int i = 0; i < 8; i++) {
        char text[96] = "";
        if (answer("nvmlDeviceGetUUID", 100 + i, NULL, 0, text, sizeof text) == OK && !strcmp(text, uuid)) {
            *device = (void *)(size_t)(101 + i);
            return OK;
        }
    }
    return 6;
}
int nvmlDeviceGetName(void *d, char *text, uint size) { return answer("nvmlDeviceGetName", index_of(d), NULL, 0, text, size); }
int nvmlDeviceGetUUID(void *d, char *text, uint size) { return answer("nvmlDeviceGetUUID", index_of(d), NULL, 0, text, size); }
int nvmlDeviceGetPciInfo_v3(void *d, char *info) { return answer("nvmlDeviceGetPciInfo", index_of(d), NULL, 0, info + 36, 32); }
int nvmlDeviceGetUtilizationRates(void *d, uint *out) {
    ull n[2] = {0, 0};
    int code = answer("nvmlDeviceGetUtilizationRates", index_of(d), n, 2, NULL, 0);
    if (code == OK) { out[0] = (uint)n[0]; out[1] = (uint)n[1]; }
    return code;
}
int nvmlDeviceGetMemoryInfo(void *d, ull *out) { return answer("nvmlDeviceGetMemoryInfo", index_of(d), out, 3, NULL, 0); }
int nvmlDeviceGetMemoryInfo_v2(void *d, ull *out) { return answer("nvmlDeviceGetMemoryInfo_v2", index_of(d), out + 1, 4, NULL, 0); }
int nvmlDeviceGetPowerUsage(void *d, uint *out) { return one("nvmlDeviceGetPowerUsage", d, out); }
int nvmlDeviceGetEnforcedPowerLimit(void *d, uint *out) { return one("nvmlDeviceGetEnforcedPowerLimit", d, out); }
int nvmlDeviceGetPowerManagementLimit(void *d, uint *out) { return one("nvmlDeviceGetPowerManagementLimit", d, out); }
int nvmlDeviceGetTemperature(void *d, int sensor, uint *out) { (void)sensor; return one("nvmlDeviceGetTemperature", d, out); }
int nvmlDeviceGetClockInfo(void *d, int type, uint *out) { return one(type == 1 ? "sm" : "mem", d, out); }
int nvmlDeviceGetPcieThroughput(void *d, int counter, uint *out) { return one(counter ? "rx" : "tx", d, out); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, uint *out) { return one("nvmlDeviceGetCurrPcieLinkGeneration", d, out); }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, uint *out) { return one("nvmlDeviceGetCurrPcieLinkWidth", d, out); }
#ifdef NEW_NAMES
int nvmlDeviceGetCurrentClocksEventReasons(void *d, ull *out) { return answer("reasons", index_of(d), out, 1, NULL, 0); }
#else
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, ull *out) { return answer("reasons", index_of(d), out, 1, NULL, 0); }
#endif
struct process { uint pid; ull used; uint gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, uint *count, struct process *out) {
    ull n[2];
    uint room = *count;
    int code = answer("processes", index_of(d), n, 2, NULL, 0);
    if (code != OK) return code;
    *count = 1;
    if (room < 1 || !out) return 7;
    out[0].pid = (uint)n[0];
    out[0].used = n[1];
    return OK;
}
