/* bcryptprimitives.dll: ProcessPrng, which Go programs take their randomness from and Wine 8 lacks. Every Go program loads it at its
 * start, so it also mends the one call of Wine 8's that makes Go's os.RemoveAll fail. */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#include <ntsecapi.h>
#include <stdint.h>
#include <string.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    while (size > 0) {
        ULONG n = size > 65536 ? 65536 : (ULONG)size;
        if (!RtlGenRandom(data, n))
            return FALSE;
        data += n;
        size -= n;
    }
    return TRUE;
}

/* NtSetInformationFile(FileDispositionInformationEx) ends in STATUS_NOT_IMPLEMENTED. Go falls back to the older class if the answer is
 * STATUS_INVALID_INFO_CLASS, which is what a Windows without it says. */
#define FILE_DISPOSITION_INFORMATION_EX 64
#define INVALID_INFO_CLASS ((LONG)0xC0000003)

typedef LONG(NTAPI *set_information)(HANDLE, void *, void *, ULONG, ULONG);
static set_information real;

static LONG NTAPI set_information_file(HANDLE file, void *status, void *data, ULONG size, ULONG class) {
    if (class == FILE_DISPOSITION_INFORMATION_EX)
        return INVALID_INFO_CLASS;
    return real(file, status, data, size, class);
}

/* springboard gives code that jumps to a function, at an address that an export table (32-bit offsets from base) can name. */
static uint8_t *springboard(uint8_t *base, DWORD image, void *to) {
    uint8_t *at;
    for (at = base + ((image + 0xffff) & ~0xffffu); at < base + 0x7fff0000u; at += 0x10000) {
        uint8_t *p = VirtualAlloc(at, 4096, MEM_RESERVE | MEM_COMMIT, PAGE_EXECUTE_READWRITE);
        if (p) {
            static const uint8_t mov_rax[] = {0x48, 0xb8}, jmp_rax[] = {0xff, 0xe0};
            memcpy(p, mov_rax, 2);
            memcpy(p + 2, &to, 8);
            memcpy(p + 10, jmp_rax, 2);
            return p;
        }
    }
    return NULL;
}

static void mend(void) {
    uint8_t *base = (uint8_t *)GetModuleHandleA("ntdll.dll"), *jump;
    IMAGE_NT_HEADERS *nt = (IMAGE_NT_HEADERS *)(base + ((IMAGE_DOS_HEADER *)base)->e_lfanew);
    IMAGE_EXPORT_DIRECTORY *dir = (IMAGE_EXPORT_DIRECTORY *)(base + nt->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_EXPORT].VirtualAddress);
    DWORD *names = (DWORD *)(base + dir->AddressOfNames), *functions = (DWORD *)(base + dir->AddressOfFunctions), i, old;
    WORD *ordinals = (WORD *)(base + dir->AddressOfNameOrdinals);

    for (i = 0; i < dir->NumberOfNames; i++) {
        DWORD *entry = &functions[ordinals[i]];
        if (strcmp((char *)base + names[i], "NtSetInformationFile"))
            continue;
        real = (set_information)(base + *entry);
        jump = springboard(base, nt->OptionalHeader.SizeOfImage, (void *)set_information_file);
        if (jump && VirtualProtect(entry, sizeof *entry, PAGE_READWRITE, &old)) {
            *entry = (DWORD)(jump - base);
            VirtualProtect(entry, sizeof *entry, old, &old);
        }
        return;
    }
}

BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, void *reserved) {
    (void)self;
    (void)reserved;
    if (reason == DLL_PROCESS_ATTACH)
        mend();
    return TRUE;
}
