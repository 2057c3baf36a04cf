/* Answers as one H200 to those calls of CUDA whose answer somebody reads; all others succeed (test_fake_cuda.py makes them).
 *
 * Kernels and copies to the device do nothing, and whatever is read back from it is 0: numbers that a model computes
 * mean nothing. Its memory is addresses that nobody may touch, so that a program that takes them for the host's ends as
 * on a GPU. What the host asks of the device is counted in the fake_cuda_ variables, which test_fake_cuda.py reads.
 */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define OK return cudaSuccess
#define COUNT(what) __atomic_add_fetch(&fake_cuda_##what, 1, __ATOMIC_RELAXED)

long fake_cuda_launches;        /* kernels, those of cuBLAS among them */
long fake_cuda_device_copies;   /* from device to device */
long fake_cuda_host_copies;     /* from the host to the device */
long fake_cuda_pageable_copies; /* those of them that CUDA makes through a buffer of its own */
long fake_cuda_read_backs;      /* from the device to the host */
long fake_cuda_waits;           /* calls that return when the device is done */

/* ---- Memory: a list of its ranges, as torch asks where a pointer lies ---- */

enum place { PAGEABLE, PINNED, DEVICE };
typedef struct range { char *start; size_t size; enum place place; struct range *next; } range;
static range *ranges;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add_range(void *start, size_t size, enum place place) {
    range *added = malloc(sizeof *added);
    pthread_mutex_lock(&lock);
    *added = (range){start, size, place, ranges};
    ranges = added;
    pthread_mutex_unlock(&lock);
}

static size_t remove_range(void *start) {
    size_t size = 0;
    pthread_mutex_lock(&lock);
    for (range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->start == start) {
            range *found = *at;
            size = found->size;
            *at = found->next;
            free(found);
            break;
        }
    pthread_mutex_unlock(&lock);
    return size;
}

static enum place place_of(const void *pointer) {
    enum place found = PAGEABLE;
    pthread_mutex_lock(&lock);
    for (range *each = ranges; each; each = each->next)
        if ((char *)pointer >= each->start && (char *)pointer < each->start + each->size) {
            found = each->place;
            break;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

static cudaError_t allocate(void **pointer, size_t size, enum place place) {
    int access = place == DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    *pointer = mmap(NULL, size ? size : 1, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*pointer == MAP_FAILED) return cudaErrorMemoryAllocation;
    add_range(*pointer, size ? size : 1, place);
    OK;
}

static cudaError_t release(void *pointer) {
    size_t size = remove_range(pointer);
    if (size) munmap(pointer, size);
    OK;
}

cudaError_t cudaMalloc(void **pointer, size_t size) { return allocate(pointer, size, DEVICE); }
cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) { return allocate(pointer, size, PINNED); }
cudaError_t cudaFree(void *pointer) { return release(pointer); }
cudaError_t cudaFreeHost(void *pointer) { return release(pointer); }
cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) { add_range(pointer, size, PINNED); OK; }
cudaError_t cudaHostUnregister(void *pointer) { remove_range(pointer); OK; }
cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) { return allocate(pointer, 4096, DEVICE); }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all) { *free_bytes = 138ul << 30; *all = 141ul << 30; OK; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
    enum cudaMemoryType types[] = {cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice};
    enum place place = place_of(pointer);
    memset(found, 0, sizeof *found);
    found->type = types[place];
    found->devicePointer = (void *)pointer;
    found->hostPointer = place == DEVICE ? NULL : (void *)pointer;
    OK;
}

/* ---- Copies and waits ---- */

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    enum place source = place_of(from), target = place_of(to);
    if (source == DEVICE && target == DEVICE) {
        COUNT(device_copies);
    } else if (target == DEVICE) {
        COUNT(host_copies);
        if (source == PAGEABLE) COUNT(pageable_copies);
    } else if (source == DEVICE) {
        COUNT(read_backs);
        memset(to, 0, size);
    } else {
        memmove(to, from, size);
    }
    OK;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    COUNT(waits);
    return cudaMemcpyAsync(to, from, size, kind, NULL);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { COUNT(waits); OK; }
cudaError_t cudaDeviceSynchronize(void) { COUNT(waits); OK; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { COUNT(waits); OK; }

/* ---- Launches ---- */

cudaError_t __cudaLaunchKernel(void) { COUNT(launches); OK; }
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) { COUNT(launches); OK; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *function, void **arguments) {
    COUNT(launches);
    OK;
}
int cuLaunchKernel(void) { COUNT(launches); return 0; }
int cuLaunchKernelEx(void) { COUNT(launches); return 0; }
int cublasLtMatmul(void) { COUNT(launches); return 0; }
int cublasGemmEx(void) { COUNT(launches); return 0; }
int cublasGemmStridedBatchedEx(void) { COUNT(launches); return 0; }
int cublasSgemm_v2(void) { COUNT(launches); return 0; }
int cublasSgemmStridedBatched(void) { COUNT(launches); return 0; }

/* ---- One H200 ---- */

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; OK; }
cudaError_t cudaGetDevice(int *device) { *device = 0; OK; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; OK; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; OK; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    memset(found, 0, sizeof *found);
    strcpy(found->name, "NVIDIA H200");
    found->major = 9;
    found->multiProcessorCount = 132;
    found->totalGlobalMem = 141ul << 30;
    found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
    found->maxThreadsDim[2] = 64;
    found->maxThreadsPerMultiProcessor = 2048;
    found->maxBlocksPerMultiProcessor = 32;
    found->maxGridSize[0] = 2147483647;
    found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->regsPerBlock = found->regsPerMultiprocessor = 65536;
    found->warpSize = 32;
    found->sharedMemPerBlock = 49152;
    found->sharedMemPerBlockOptin = 232448;
    found->sharedMemPerMultiprocessor = 233472;
    found->l2CacheSize = 60 << 20;
    found->textureAlignment = 512;
    found->unifiedAddressing = 1;
    found->memPitch = 2147483647;
    found->memoryBusWidth = 6144;
    OK;
}

cudaError_t cudaDeviceGetAttribute(int *found, enum cudaDeviceAttr which, int device) {
    switch (which) {
        case cudaDevAttrComputeCapabilityMajor: *found = 9; break;
        case cudaDevAttrComputeCapabilityMinor: *found = 0; break;
        case cudaDevAttrMultiProcessorCount: *found = 132; break;
        case cudaDevAttrMaxThreadsPerBlock: *found = 1024; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *found = 2048; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *found = 49152; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *found = 232448; break;
        case cudaDevAttrMaxRegistersPerBlock: *found = 65536; break;
        case cudaDevAttrWarpSize: *found = 32; break;
        case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *found = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *found = 64; break;
        case cudaDevAttrMaxGridDimX: *found = 2147483647; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *found = 65535; break;
        default: *found = 1; /* most others ask whether the device can do something */
    }
    OK;
}

cudaError_t cudaDeviceGetPCIBusId(char *name, int size, int device) { strncpy(name, "0000:01:00.0", size); OK; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; OK; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { *least = 0; *most = -5; OK; }

/* ---- Handles: a small piece of memory each, as nobody may get the same one twice ---- */

static int make_handle(void **handle) { *handle = calloc(1, 256); return 0; }

cudaError_t cudaStreamCreate(cudaStream_t *stream) { make_handle((void **)stream); OK; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { make_handle((void **)stream); OK; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    make_handle((void **)stream);
    OK;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; OK; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) { *status = 0; OK; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) { *status = 0; OK; }
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { *mode = 0; OK; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) { make_handle((void **)pool); OK; }

/* An event holds the moment of its record, so that times between events are the host's. */
cudaError_t cudaEventCreate(cudaEvent_t *event) { make_handle((void **)event); OK; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { make_handle((void **)event); OK; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); OK; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    clock_gettime(CLOCK_MONOTONIC, (struct timespec *)event);
    OK;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return cudaEventRecord(event, stream);
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    struct timespec *from = (struct timespec *)start, *to = (struct timespec *)stop;
    double passed = (to->tv_sec - from->tv_sec) * 1e3 + (to->tv_nsec - from->tv_nsec) / 1e6;
    *milliseconds = (float)passed + 1e-3f; /* never 0, which would be divided by */
    OK;
}

/* ---- Kernels: what a launch is sized by ---- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 64;
    found->ptxVersion = found->binaryVersion = 90;
    found->maxDynamicSharedSizeBytes = 49152;
    OK;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size, size_t shared) {
    *blocks = 2;
    OK;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size,
                                                                   size_t shared, unsigned flags) {
    *blocks = 2;
    OK;
}
const char *cudaGetErrorString(cudaError_t error) { return "an error of the stand-in for CUDA"; }
const char *cudaGetErrorName(cudaError_t error) { return "cudaErrorOfTheStandIn"; }

/* ---- The driver, which torch looks up by name ---- */

static long succeed(void) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    void *found = dlsym(RTLD_DEFAULT, name);
    *function = found ? found : (void *)succeed;
    if (result) *result = cudaDriverEntryPointSuccess;
    OK;
}

#define CONTEXT ((void *)0x1000) /* any: only whether there is one is asked */

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = CUDART_VERSION; return 0; }
int cuDeviceGet(int *device, int number) { *device = 0; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "NVIDIA H200", size); return 0; }
int cuDeviceGetAttribute(int *found, int which, int device) { return cudaDeviceGetAttribute(found, which, device); }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) { *flags = 0; *is_active = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = CONTEXT; return 0; }
int cuCtxGetCurrent(void **context) { *context = CONTEXT; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }

/* ---- cuBLAS and NCCL: handles, versions, one rank ---- */

int cublasCreate_v2(void **handle) { return make_handle(handle); }
int cublasLtCreate(void **handle) { return make_handle(handle); }
int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; return 0; }
int cublasLtMatmulDescCreate(void **found, int type, int scale) { return make_handle(found); }
int cublasLtMatmulPreferenceCreate(void **found) { return make_handle(found); }
int cublasLtMatrixLayoutCreate(void **found, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return make_handle(found);
}
/* One way to make the product; a cublasLtMatmulHeuristicResult_t has 96 bytes. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *how, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *count) {
    memset(results, 0, 96);
    *count = 1;
    return 0;
}
size_t cublasLtGetVersion(void) { return 130100; }
const char *cublasGetStatusString(int status) { return "an error of the stand-in for cuBLAS"; }

int ncclGetVersion(int *version) { *version = 22809; return 0; }
int ncclGetUniqueId(void *id) { memset(id, 1, 128); return 0; }
int ncclCommInitRank(void **group) { return make_handle(group); }
int ncclCommInitRankConfig(void **group) { return make_handle(group); }
int ncclCommGetAsyncError(void *group, int *error) { *error = 0; return 0; }
int ncclCommCount(void *group, int *count) { *count = 1; return 0; }
int ncclCommUserRank(void *group, int *rank) { *rank = 0; return 0; }
const char *ncclGetErrorString(int error) { return "an error of the stand-in for NCCL"; }
const char *ncclGetLastError(void *group) { return ""; }
