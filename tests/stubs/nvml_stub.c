/* A made-up NVIDIA driver: the part of NVML's binary interface that the project calls, for GPUs that are not there.
 *
 * Built as libnvidia-ml.so.1 and found through LD_LIBRARY_PATH, it lets the real pynvml read figures that a test has
 * chosen. Every value comes from an environment variable, read at each call; a list has one entry a GPU, and its last
 * entry serves the GPUs after it:
 *   STUB_NVML_COUNT=4                  number of GPUs
 *   STUB_NVML_USED_MIB=1000,2000       memory in use, without the 500 MiB that the driver reserves
 *   STUB_NVML_TOTAL_MIB=81920,-1       -1: the GPU does not say (its memory is the host's)
 *   STUB_NVML_VERSION=535.54.03        of the driver
 *   STUB_NVML_CUDA=13000               the newest CUDA that the driver serves
 *   STUB_NVML_CAPABILITY=90,75         compute capability
 *   STUB_NVML_NAME=Stub,Other          names; without, each GPU has another
 *   STUB_NVML_MIG=0,1                  1: the GPU is in MIG mode
 *   STUB_NVML_SLICES=2,0               slices that it is cut into then
 *   STUB_NVML_SLICE_MIB=10240          memory of a slice, of which 100 MiB are in use
 *   STUB_NVML_LOST=0,1                 1: the driver gives no handle of the GPU ("GPU is lost")
 *   STUB_NVML_PROCESSES=0:self:300,1:77:400   GPU:pid:MiB; "self" is the asking process, -1 MiB is "not available"; a
 *                                      newer driver lists processes of a container with 0 MiB
 *   STUB_NVML_ROW_BYTES=32             the third form of the list writes rows of 32 bytes where 24 are read, as drivers
 *                                      535.43.02 to 535.86.05 do: from the second row on everything is shifted
 *   STUB_NVML_UTILIZATION=10,20        percent
 *   STUB_NVML_POWER_MW=100000,200000   milliwatts; energy is power times the time since a fixed moment
 *   STUB_NVML_POWER_LIMIT_MW=700000    what a board may draw
 *   STUB_NVML_SM_MHZ=1500,1980         clock of the multiprocessors
 *   STUB_NVML_THROTTLE=0,32            bits of the reasons for which it is held down
 *   STUB_NVML_UUID=0000aaaa,0000bbbb   the first 8 digits of each UUID
 *   STUB_NVML_PCIE_GEN=4, STUB_NVML_PCIE_WIDTH=8   of the link now; STUB_NVML_PCIE_MAX_GEN=5, _MAX_WIDTH=16: at most
 *   STUB_NVML_NVLINKS=18,0             active NVLinks
 *   STUB_NVML_P2P=0                    status of peer to peer between each two GPUs: 0 is "ok", 4 "disabled by regkey"
 *   STUB_NVML_ANCESTOR=30              the nearest common ancestor of each two: 10 a switch, 30 a host bridge, 50 SMP
 *   STUB_NVML_ECC=1,-1                 -1: the GPU has none
 *   STUB_NVML_PERSISTENCE=1,0
 *   STUB_NVML_INIT_ERROR=9             what nvmlInit returns
 *   STUB_NVML_UNSUPPORTED=power,energy,utilization,clock,throttle,list,links   figures answered with "not supported"
 *                                      ("list": the processes, as on WSL2); processes with "no permission"; cuda,
 *                                      capability, mig with "not found"
 *
 * Built with -DSTUB_NVML_OLD it lacks what older drivers lack (memory v2, process list v3, energy, CUDA's version v2); with
 * -DSTUB_NVML_ANCIENT it lacks nvmlInitWithFlags too.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef STUB_NVML_ANCIENT
#define STUB_NVML_OLD
#endif

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };
enum { WRONG_VERSION = 25 };
enum { MAX_GPUS = 16, MAX_SLICES = 7, WHOLE = -1 };
#define MIB (1024ull * 1024ull)
#define RESERVED_MIB 500ull

typedef struct { int index, slice; } Device; /* slice: its number on the GPU, WHOLE for the GPU itself */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Process as_read; unsigned long long protected; } Process535; /* what those drivers write */
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} Pci;

static Device devices[MAX_GPUS], slices[MAX_GPUS][MAX_SLICES];

/* --- the environment ------------------------------------------------------------------------------------------ */

static const char *setting(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value && *value ? value : fallback;
}

/* The text of entry `index` of a list, or of its last one. */
static void entry(const char *list, int index, char *out, size_t size) {
    for (; index > 0 && strchr(list, ','); index--) list = strchr(list, ',') + 1;
    snprintf(out, size, "%.*s", (int)strcspn(list, ","), list);
}

static long long number(const char *name, const char *fallback, int index) {
    char text[64];
    entry(setting(name, fallback), index, text, sizeof text);
    return atoll(text);
}

static int count(void) {
    int wanted = atoi(setting("STUB_NVML_COUNT", "4"));
    return wanted < MAX_GPUS ? wanted : MAX_GPUS;
}

static int unsupported(const char *figure) { return strstr(setting("STUB_NVML_UNSUPPORTED", ""), figure) != NULL; }

static void uuid_of(int index, char *out, size_t size) {
    char head[32];
    entry(setting("STUB_NVML_UUID", "a0000000,b1111111,c2222222,d3333333"), index, head, sizeof head);
    snprintf(out, size, "GPU-%s-0000-0000-0000-%012d", head, index);
}

static void bus_of(int index, char *out, size_t size) { snprintf(out, size, "00000000:%02X:00.0", 16 * (index + 1)); }

/* --- the library ---------------------------------------------------------------------------------------------- */

static int init(void) {
    for (int i = 0; i < MAX_GPUS; i++) {
        devices[i] = (Device){i, WHOLE};
        for (int j = 0; j < MAX_SLICES; j++) slices[i][j] = (Device){i, j};
    }
    return atoi(setting("STUB_NVML_INIT_ERROR", "0"));
}

int nvmlInit_v2(void) { return init(); }
#ifndef STUB_NVML_ANCIENT
int nvmlInitWithFlags(unsigned flags) { (void)flags; return init(); }
#endif
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { (void)error; return "an error of the made-up driver"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    snprintf(out, size, "%s", setting("STUB_NVML_VERSION", "570.00.stub"));
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *out) {
    if (unsupported("cuda")) return NOT_FOUND;
    *out = atoi(setting("STUB_NVML_CUDA", "13000"));
    return OK;
}

/* --- finding a GPU -------------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *out) { *out = (unsigned)count(); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    if ((int)index >= count()) return INVALID;
    if (number("STUB_NVML_LOST", "0", (int)index)) return LOST;
    *out = &devices[index];
    return OK;
}

static int find(const char *wanted, void (*name_of)(int, char *, size_t), Device **out) {
    char name[96];
    for (int i = 0; i < count(); i++) {
        name_of(i, name, sizeof name);
        if (strcmp(name, wanted) == 0) { *out = &devices[i]; return OK; }
    }
    return NOT_FOUND;
}

static int slices_of(int index) {
    return number("STUB_NVML_MIG", "0", index) ? (int)number("STUB_NVML_SLICES", "0", index) : 0;
}

static void slice_uuid(Device *slice, char *out, size_t size) {
    snprintf(out, size, "MIG-%08x-0000-0000-0000-%012d", 0xe0 + slice->slice, slice->index);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    char name[96];
    for (int i = 0; i < count(); i++)
        for (int j = 0; j < slices_of(i); j++) {
            slice_uuid(&slices[i][j], name, sizeof name);
            if (strcmp(name, uuid) == 0) { *out = &slices[i][j]; return OK; }
        }
    return find(uuid, uuid_of, out);
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *out) {
    *out = number("STUB_NVML_MIG", "0", device->index) ? MAX_SLICES : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **out) {
    if ((int)index >= slices_of(device->index)) return NOT_FOUND;
    *out = &slices[device->index][index];
    return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device **out) { return find(bus, bus_of, out); }

/* --- one GPU's figures ---------------------------------------------------------------------------------------- */

int nvmlDeviceGetName(Device *device, char *out, unsigned size) {
    char kind[64];
    entry(setting("STUB_NVML_NAME", ""), device->index, kind, sizeof kind);
    if (*kind) snprintf(out, size, "%s", kind);
    else snprintf(out, size, "Stub GPU %d", device->index);
    if (device->slice != WHOLE) strncat(out, " MIG 1g.10gb", size - strlen(out) - 1);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    int both = (int)number("STUB_NVML_CAPABILITY", "90", device->index);
    if (unsupported("capability")) return NOT_FOUND;
    if (device->slice != WHOLE) return NOT_SUPPORTED;
    *major = both / 10;
    *minor = both % 10;
    return OK;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    if (unsupported("mig")) return NOT_SUPPORTED;
    *current = *pending = (unsigned)number("STUB_NVML_MIG", "0", device->index);
    return OK;
}

int nvmlDeviceGetUUID(Device *device, char *out, unsigned size) {
    if (device->slice != WHOLE) slice_uuid(device, out, size);
    else uuid_of(device->index, out, size);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
    memset(out, 0, sizeof *out);
    out->bus = 16u * (unsigned)(device->index + 1);
    bus_of(device->index, out->bus_id, sizeof out->bus_id);
    return OK;
}

static int without_memory(Device *d) { return d->slice == WHOLE && number("STUB_NVML_TOTAL_MIB", "81920", d->index) < 0; }
static unsigned long long total(Device *d) {
    if (d->slice != WHOLE) return MIB * number("STUB_NVML_SLICE_MIB", "10240", d->index);
    return MIB * number("STUB_NVML_TOTAL_MIB", "81920", d->index);
}
static unsigned long long used(Device *d) {
    return MIB * (d->slice != WHOLE ? 100 : number("STUB_NVML_USED_MIB", "1000,2000,3000,4000", d->index));
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    if (without_memory(device)) return NOT_SUPPORTED;
    out->total = total(device);
    out->used = used(device) + RESERVED_MIB * MIB; /* the first form adds what the driver reserves */
    out->free = out->total - out->used;
    return OK;
}

/* The process list in the layout that its second and third form share. */
static int processes(Device *device, unsigned *count_io, Process *out) {
    unsigned found = 0, room = *count_io;
    if (unsupported("processes")) return NO_PERMISSION;
    if (unsupported("list")) return NOT_SUPPORTED;
    const char *row = setting("STUB_NVML_PROCESSES", "");
    for (; row && *row; row = strchr(row, ',') ? strchr(row, ',') + 1 : NULL) {
        int gpu; char pid[16]; long long mib;
        if (sscanf(row, "%d:%15[^:]:%lld", &gpu, pid, &mib) != 3 || gpu != device->index) continue;
        if (out && found < room) {
            memset(&out[found], 0, sizeof *out);
            out[found].gpu_instance = out[found].compute_instance = ~0u; /* not of a slice */
            out[found].pid = strcmp(pid, "self") == 0 ? (unsigned)getpid() : (unsigned)strtoul(pid, NULL, 10);
            out[found].used = mib < 0 ? ~0ull : MIB * (unsigned long long)mib;
        }
        found++;
    }
    *count_io = found;
    return found > room || (found && !out) ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, unsigned *count_io, Process *out) {
    return processes(device, count_io, out);
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
    if (unsupported("utilization") || device->slice != WHOLE) return NOT_SUPPORTED;
    out->gpu = (unsigned)number("STUB_NVML_UTILIZATION", "10,20,30,40", device->index);
    out->memory = 0;
    return OK;
}

static unsigned milliwatts(int index) {
    return (unsigned)number("STUB_NVML_POWER_MW", "100000,200000,300000,400000", index);
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *out) {
    if (unsupported("power") || device->slice != WHOLE) return NOT_SUPPORTED;
    *out = milliwatts(device->index);
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *out) {
    if (unsupported("power") || device->slice != WHOLE) return NOT_SUPPORTED;
    *out = (unsigned)number("STUB_NVML_POWER_LIMIT_MW", "700000", device->index);
    return OK;
}

int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *out) {
    if (unsupported("clock") || device->slice != WHOLE) return NOT_SUPPORTED;
    *out = type == 1 ? (unsigned)number("STUB_NVML_SM_MHZ", "1500,1600,1700,1800", device->index) : 0;
    return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *out) {
    if (unsupported("throttle") || device->slice != WHOLE) return NOT_SUPPORTED;
    *out = (unsigned long long)number("STUB_NVML_THROTTLE", "0", device->index);
    return OK;
}

/* --- how the GPUs are attached --------------------------------------------------------------------------------- */

enum { LINKS = 18 };

static int figure(const char *name, const char *fallback, Device *device, unsigned *out) {
    long long value = number(name, fallback, device->index);
    if (unsupported("links") || value < 0) return NOT_SUPPORTED;
    *out = (unsigned)value;
    return OK;
}

int nvmlDeviceGetCurrPcieLinkGeneration(Device *d, unsigned *out) { return figure("STUB_NVML_PCIE_GEN", "4", d, out); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device *d, unsigned *out) { return figure("STUB_NVML_PCIE_MAX_GEN", "4", d, out); }
int nvmlDeviceGetCurrPcieLinkWidth(Device *d, unsigned *out) { return figure("STUB_NVML_PCIE_WIDTH", "16", d, out); }
int nvmlDeviceGetMaxPcieLinkWidth(Device *d, unsigned *out) { return figure("STUB_NVML_PCIE_MAX_WIDTH", "16", d, out); }
int nvmlDeviceGetPersistenceMode(Device *d, unsigned *out) { return figure("STUB_NVML_PERSISTENCE", "1", d, out); }

int nvmlDeviceGetEccMode(Device *device, unsigned *current, unsigned *pending) {
    int result = figure("STUB_NVML_ECC", "1", device, current);
    *pending = *current;
    return result;
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *active) {
    long long links = number("STUB_NVML_NVLINKS", "0", device->index);
    if (link >= LINKS) return INVALID;
    if (unsupported("links") || links == 0) return NOT_SUPPORTED;
    *active = link < (unsigned)links;
    return OK;
}

int nvmlDeviceGetP2PStatus(Device *one, Device *other, unsigned index, unsigned *status) {
    unsigned first = 0, second = 0;
    if (unsupported("links")) return NOT_SUPPORTED;
    *status = (unsigned)number("STUB_NVML_P2P", "0", 0);
    if (index == 2 /* by NVLink */ && (nvmlDeviceGetNvLinkState(one, 0, &first) || nvmlDeviceGetNvLinkState(other, 0, &second)))
        *status = 5; /* not supported */
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(Device *one, Device *other, unsigned *out) {
    (void)other;
    return figure("STUB_NVML_ANCESTOR", "30", one, out);
}

#ifndef STUB_NVML_OLD
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *out) {
    if (out->version != (sizeof *out | (2u << 24))) return WRONG_VERSION;
    if (without_memory(device)) return NOT_SUPPORTED;
    out->total = total(device);
    out->reserved = RESERVED_MIB * MIB;
    out->used = used(device);
    out->free = out->total - out->reserved - out->used;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count_io, Process *out) {
    unsigned room = *count_io;
    int result = processes(device, count_io, out);
    if (result == OK && out && atoi(setting("STUB_NVML_ROW_BYTES", "24")) == sizeof(Process535)) {
        static Process535 rows[64];
        unsigned bytes = *count_io * sizeof *rows, most = room * sizeof *out;
        memset(rows, 0, sizeof rows);
        for (unsigned i = 0; i < *count_io && i < 64; i++) rows[i].as_read = out[i];
        memcpy(out, rows, bytes < most ? bytes : most);
    }
    return result;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *out) {
    struct timespec now;
    if (unsupported("energy") || device->slice != WHOLE) return NOT_SUPPORTED;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *out = (unsigned long long)(milliwatts(device->index) * (now.tv_sec + now.tv_nsec * 1e-9));
    return OK;
}
#endif
