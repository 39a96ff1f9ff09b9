/* What torch asks of CUDA's driver and runtime while it makes up a GPU (tests/fake_cuda.py): one device, and nothing on it.
 *
 * Loaded as libcuda.so.1 before all others, its symbols come before those of the libraries that torch brings. There is no device until
 * stub_set_devices says so: torch puts its own stand-in in the place of CUDA's guard where there is none.
 */
static signed char devices = 0;

void stub_set_devices(signed char count) { devices = count; }

/* c10::cuda::device_count() and device_count_ensure_non_zero() */
signed char _ZN3c104cuda12device_countEv(void) { return devices; }
signed char _ZN3c104cuda28device_count_ensure_non_zeroEv(void) { return devices; }

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  *flags = 0, *active = 0;
  return 0;
}

int cudaGetDevice(int *device) { return *device = 0; }
int cudaSetDevice(int device) { return device; }
int cudaGetLastError(void) { return 0; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return *event = (void *)1, (void)flags, 0; }
int cudaEventRecord(void *event, void *stream) { return (void)event, (void)stream, 0; }
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { return (void)event, (void)stream, (void)flags, 0; }
int cudaEventDestroy(void *event) { return (void)event, 0; }
int cudaEventQuery(void *event) { return (void)event, 0; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -1, 0; }
int cudaGetDeviceCount(int *count) { return *count = devices, 0; }
int cudaDriverGetVersion(int *version) { return *version = 13000, 0; }
int cudaStreamIsCapturing(void *stream, int *status) { return (void)stream, *status = 0, 0; }
