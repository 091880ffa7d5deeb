// A team of threads is started through one of two interfaces: GCC's, which every runtime on Linux has (also libomp and
// libiomp5), and that of LLVM and Intel, the only one on macOS and Windows. They are documented in GCC's libgomp manual
// ("Implementing PARALLEL construct") and in LLVM's openmp/runtime/src/kmp.h.
#include "runtime/openmp_runtime.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#else
#include <link.h>
#endif
#endif

namespace regard {
namespace openmp {
namespace {

// ---- symbols of the runtime that torch calls ----

#if defined(_WIN32)

using Scope = HMODULE;

// The runtime is one of the libraries that torch_cpu.dll imports, whatever its name.
void* find_symbol(Scope torch, const char* name) {
    const char* base = reinterpret_cast<const char*>(torch);
    const auto* dos = reinterpret_cast<const IMAGE_DOS_HEADER*>(base);
    const auto* headers = reinterpret_cast<const IMAGE_NT_HEADERS*>(base + dos->e_lfanew);
    const IMAGE_DATA_DIRECTORY& imports = headers->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_IMPORT];
    if (imports.VirtualAddress == 0) return nullptr;
    const auto* library = reinterpret_cast<const IMAGE_IMPORT_DESCRIPTOR*>(base + imports.VirtualAddress);
    for (; library->Name != 0; ++library) {
        const HMODULE imported = GetModuleHandleA(base + library->Name);
        if (imported == nullptr) continue;
        if (const FARPROC found = GetProcAddress(imported, name)) return reinterpret_cast<void*>(found);
    }
    return nullptr;
}

std::string library_path(void* symbol) {
    HMODULE library = nullptr;
    const DWORD how = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    char path[MAX_PATH];
    if (!GetModuleHandleExA(how, static_cast<const char*>(symbol), &library)) return "OpenMP";
    const DWORD length = GetModuleFileNameA(library, path, MAX_PATH);
    return length == 0 ? "OpenMP" : std::string(path, length);
}

#else

using Scope = void*;

void* find_symbol(Scope torch, const char* name) { return dlsym(torch, name); }

std::string library_path(void* symbol) {
    Dl_info info;
    return dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "OpenMP";
}

// The loaded library whose file name begins with a prefix; empty if there is none.
#if defined(__APPLE__)
std::string find_loaded_library(const char* prefix) {
    for (uint32_t image = 0; image < _dyld_image_count(); ++image) {
        const char* path = _dyld_get_image_name(image);
        const char* slash = path == nullptr ? nullptr : strrchr(path, '/');
        if (slash != nullptr && strncmp(slash + 1, prefix, strlen(prefix)) == 0) return path;
    }
    return {};
}
#else
struct Search {
    const char* prefix;
    std::string path;
};
int match_library(dl_phdr_info* library, size_t, void* data) {
    Search& search = *static_cast<Search*>(data);
    const char* slash = library->dlpi_name == nullptr ? nullptr : strrchr(library->dlpi_name, '/');
    if (slash == nullptr || strncmp(slash + 1, search.prefix, strlen(search.prefix)) != 0) return 0;
    search.path = library->dlpi_name;
    return 1;
}
std::string find_loaded_library(const char* prefix) {
    Search search{prefix, {}};
    dl_iterate_phdr(&match_library, &search);
    return search.path;
}
#endif

#endif

// ---- the runtime ----

struct Team {
    void (*run)(void* context, int thread);
    void* context;
};

struct Location {  // ident_t of LLVM: the source location of a region, which is not used
    int32_t reserved_1, flags, reserved_2, reserved_3;
    const char* source;
};
const Location unknown_location = {0, 2 /* KMP_IDENT_KMPC */, 0, 0, ";unknown;unknown;0;0;;"};

using Microtask = void (*)(int32_t* global_thread, int32_t* thread, void* team);

struct Runtime {
    void (*gomp_parallel)(void (*)(void*), void*, unsigned threads, unsigned flags) = nullptr;
    void (*fork_call)(const Location*, int32_t count, Microtask, ...) = nullptr;
    void (*push_num_threads)(const Location*, int32_t global_thread, int32_t threads) = nullptr;
    int32_t (*global_thread_num)(const Location*) = nullptr;
    int (*thread_num)() = nullptr;
    int (*in_parallel)() = nullptr;
    int (*proc_bind)() = nullptr;  // may be missing
    std::string file;

    bool is_complete() const {
        const bool starts = gomp_parallel != nullptr || (fork_call && push_num_threads && global_thread_num);
        return starts && thread_num != nullptr && in_parallel != nullptr;
    }
};

template <class Function>
void* bind(Function*& function, Scope scope, const char* name) {
    void* symbol = find_symbol(scope, name);
    memcpy(&function, &symbol, sizeof function);
    return symbol;
}

// Forgets functions of other libraries, whose threads are not those of this one.
template <class... Functions>
void keep_from(const std::string& file, Functions*&... functions) {
    const auto keep = [&](auto*& function) {
        void* symbol = nullptr;
        memcpy(&symbol, &function, sizeof symbol);
        if (symbol != nullptr && library_path(symbol) != file) function = nullptr;
    };
    (keep(functions), ...);
}

Runtime bind_runtime(Scope scope) {
    Runtime runtime;
    void* any = bind(runtime.in_parallel, scope, "omp_in_parallel");
    bind(runtime.thread_num, scope, "omp_get_thread_num");
    bind(runtime.proc_bind, scope, "omp_get_proc_bind");
    bind(runtime.gomp_parallel, scope, "GOMP_parallel");
    bind(runtime.fork_call, scope, "__kmpc_fork_call");
    bind(runtime.push_num_threads, scope, "__kmpc_push_num_threads");
    bind(runtime.global_thread_num, scope, "__kmpc_global_thread_num");
    if (any == nullptr) return {};
    runtime.file = library_path(any);
    keep_from(runtime.file, runtime.thread_num, runtime.proc_bind, runtime.gomp_parallel, runtime.fork_call,
              runtime.push_num_threads, runtime.global_thread_num);
    return runtime.is_complete() ? runtime : Runtime{};
}

#if defined(_WIN32)
Runtime find_runtime() {
    const HMODULE torch = GetModuleHandleA("torch_cpu.dll");
    return torch == nullptr ? Runtime{} : bind_runtime(torch);
}
#else
// Searches in the order in which the dynamic linker bound torch's own calls: on Linux first the globally visible
// libraries (preloaded ones, and those of libtorch_global_deps.so), then the dependencies of torch_cpu; on macOS only
// the latter.
Runtime find_runtime() {
#if !defined(__APPLE__)
    Runtime visible = bind_runtime(RTLD_DEFAULT);
    if (visible.is_complete()) return visible;
#endif
    const std::string path = find_loaded_library("libtorch_cpu.");
    void* torch = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);  // never closed
    return torch == nullptr ? Runtime{} : bind_runtime(torch);
}
#endif

const Runtime& runtime() {
    static const Runtime* const only =
        new Runtime(find_runtime());  // never destroyed: a thread may outlive the module's end
    return *only;
}

// The variables that the runtimes read when they are loaded; GCC's prefers its own.
bool are_told_to_sleep() {
    constexpr long long short_polling = 20000;  // GOMP_SPINCOUNT: about 0.2 ms
    if (const char* count = getenv("GOMP_SPINCOUNT")) return isdigit(*count) && atoll(count) <= short_polling;
    if (const char* time = getenv("KMP_BLOCKTIME")) return atoll(time) == 0 && isdigit(*time);
    const char* policy = getenv("OMP_WAIT_POLICY");
    return policy != nullptr && (*policy == 'p' || *policy == 'P');
}

void run_member(const Team& team) { team.run(team.context, runtime().thread_num()); }
void run_gomp(void* team) { run_member(*static_cast<const Team*>(team)); }
void run_kmpc(int32_t*, int32_t*, void* team) { run_member(*static_cast<const Team*>(team)); }

}  // namespace

const std::string& file() { return runtime().file; }

bool in_parallel() { return runtime().is_complete() && runtime().in_parallel() != 0; }

bool threads_poll() {
    static const bool poll = [] {
        const Runtime& known = runtime();
        if (!known.is_complete()) return false;
        // Threads that are bound to cores pass this on to threads that they start, which would share a core.
        if (known.proc_bind != nullptr && known.proc_bind() != 0) return true;
        return !are_told_to_sleep();
    }();
    return poll;
}

void run_team(int threads, void (*run)(void*, int), void* context) {
    const Runtime& with = runtime();
    Team team{run, context};
    if (!with.is_complete()) {
        run(context, 0);
    } else if (with.gomp_parallel != nullptr) {
        with.gomp_parallel(&run_gomp, &team, static_cast<unsigned>(threads), 0);
    } else {
        with.push_num_threads(&unknown_location, with.global_thread_num(&unknown_location), threads);
        with.fork_call(&unknown_location, 1, &run_kmpc, &team);
    }
}

}  // namespace openmp
}  // namespace regard
