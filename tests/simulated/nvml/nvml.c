// A libnvidia-ml.so.1 of our own, for tests: SIMNVML describes the GPUs, one after another, separated by ';', each with words such as
//   name=H200,uuid=GPU-1,bus=3b,mode=3,mig=2,node=1,cpus=f0
// An empty SIMNVML is a driver without GPUs. SIMNVML_INIT: what nvmlInit_v2 returns (9: no kernel module). SIMNVML_REFUSE: names of
// functions that answer "not supported", as in containers. Without nvmlInit_v2 everything answers "uninitialized". Only the names with the
// right suffixes are here; nvmlInit, the first version, ends the program.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, MOST = 64 };

struct gpu {
  char name[96], uuid[96];
  unsigned bus, mode, mig, node, processes;
  unsigned long cpus;
};
struct pci {
  char old_bus_id[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
struct memory {
  unsigned long long total, free, used;
};
struct process {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

static struct gpu gpus[MOST];
static unsigned count;
static int started;

static void set(struct gpu* gpu, char* word) {
  char* value = strchr(word, '=');
  if (!value) return;
  *value++ = 0;
  if (!strcmp(word, "name")) snprintf(gpu->name, sizeof gpu->name, "%s", value);
  if (!strcmp(word, "uuid")) snprintf(gpu->uuid, sizeof gpu->uuid, "%s", value);
  if (!strcmp(word, "bus")) gpu->bus = strtoul(value, 0, 16);
  if (!strcmp(word, "mode")) gpu->mode = strtoul(value, 0, 10);
  if (!strcmp(word, "mig")) gpu->mig = strtoul(value, 0, 10);
  if (!strcmp(word, "node")) gpu->node = strtoul(value, 0, 10);
  if (!strcmp(word, "cpus")) gpu->cpus = strtoul(value, 0, 16);
  if (!strcmp(word, "processes")) gpu->processes = strtoul(value, 0, 10);
}

static void read_all(void) {
  const char* setting = getenv("SIMNVML");
  char* text = strdup(setting ? setting : "");
  char *outer = 0, *inner = 0;
  count = 0;
  for (char* one = strtok_r(text, ";", &outer); one && count < MOST; one = strtok_r(0, ";", &outer)) {
    struct gpu* gpu = &gpus[count];
    memset(gpu, 0, sizeof *gpu);
    snprintf(gpu->name, sizeof gpu->name, "Simulated GPU");
    snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-00000000-0000-0000-0000-%012u", count);
    gpu->bus = 16 + count;
    for (char* word = strtok_r(one, ",", &inner); word; word = strtok_r(0, ",", &inner)) set(gpu, word);
    ++count;
  }
  free(text);
}

static int refused(const char* name) {
  const char* names = getenv("SIMNVML_REFUSE");
  if (!started) return UNINITIALIZED;
  return names && strstr(names, name) ? NOT_SUPPORTED : OK;
}
#define ASK()                     \
  do {                            \
    int code = refused(__func__); \
    if (code != OK) return code;  \
  } while (0)

// Handles are numbers from 1; a MIG device has those of its GPU and its own in hundreds.
static struct gpu* of(void* device) { return &gpus[((unsigned long)device - 1) % 100]; }

static int fill(char* to, unsigned length, const char* text) {
  if (strlen(text) >= length) return SMALL;
  strcpy(to, text);
  return OK;
}

int nvmlInit(void) { abort(); }
int nvmlInit_v2(void) {
  const char* code = getenv("SIMNVML_INIT");
  if (code && atoi(code)) return atoi(code);
  read_all();
  ++started;
  return OK;
}
int nvmlShutdown(void) { return started ? (--started, OK) : UNINITIALIZED; }
const char* nvmlErrorString(int code) {
  return code == 9 ? "Driver Not Loaded" : code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* to, unsigned length) {
  ASK();
  return fill(to, length, "580.82.07");
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  ASK();
  *version = 13000;
  return OK;
}
int nvmlDeviceGetCount_v2(unsigned* to) {
  ASK();
  *to = count;
  return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  ASK();
  if (index >= count) return INVALID;
  *device = (void*)(unsigned long)(index + 1);
  return OK;
}
int nvmlDeviceGetName(void* device, char* to, unsigned length) {
  ASK();
  return fill(to, length, of(device)->name);
}
int nvmlDeviceGetUUID(void* device, char* to, unsigned length) {
  ASK();
  unsigned part = ((unsigned long)device - 1) / 100;
  char text[128];
  snprintf(text, sizeof text, part ? "MIG-%s-%u" : "%s", of(device)->uuid, part - 1);
  return fill(to, length, text);
}
int nvmlDeviceGetPciInfo_v3(void* device, struct pci* to) {
  ASK();
  memset(to, 0, sizeof *to);
  to->bus = of(device)->bus;
  snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", to->bus);
  return OK;
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  ASK();
  (void)device;
  *major = 9;
  *minor = 0;
  return OK;
}
int nvmlDeviceGetMemoryInfo(void* device, struct memory* to) {
  ASK();
  (void)device;
  to->total = 141ULL << 30;
  to->free = to->total;
  to->used = 0;
  return OK;
}
int nvmlDeviceGetComputeMode(void* device, int* mode) {
  ASK();
  *mode = of(device)->mode;
  return OK;
}
int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* pending) {
  ASK();
  *now = *pending = of(device)->mig > 0;
  return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void* device, unsigned* most) {
  ASK();
  (void)device;
  *most = 7;
  return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** to) {
  ASK();
  if (index >= of(device)->mig) return NOT_FOUND;
  *to = (void*)((unsigned long)device + 100 * (index + 1));
  return OK;
}
int nvmlDeviceGetCpuAffinity(void* device, unsigned words, unsigned long* to) {  // 4 CPUs a node
  ASK();
  memset(to, 0, words * sizeof *to);
  to[0] = of(device)->cpus ? of(device)->cpus : 15UL << 4 * of(device)->node;
  return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* number, struct process* to) {
  ASK();
  if (*number < of(device)->processes) return SMALL;
  *number = of(device)->processes;
  for (unsigned i = 0; i < *number; ++i) to[i] = (struct process){.pid = 1000 + i, .memory = 1 << 20};
  return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(void* first, void* second, int* level) {
  ASK();
  *level = of(first)->node == of(second)->node ? 10 : 50;
  return OK;
}
int nvmlDeviceGetP2PStatus(void* first, void* second, int what, int* status) {
  ASK();
  int near = of(first)->node == of(second)->node;
  *status = near ? 0 : what == 2 ? 5 : 3;
  return OK;
}
