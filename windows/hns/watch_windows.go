package hns

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"
)

// hcsshim has no notifications.
var (
	procRegisterServiceCallback   = computenetwork.NewProc("HcnRegisterServiceCallback")
	procUnregisterServiceCallback = computenetwork.NewProc("HcnUnregisterServiceCallback")
)

// Types of notifications (HCN_NOTIFICATIONS, computenetwork.h).
const (
	notifyNetworkCreated    = 2
	notifyNetworkDeleted    = 4
	notifyServiceDisconnect = 0x01000000
)

// watchers are the callers of Watch, by the context that HNS passes back: a Go pointer must not be that.
var watchers = struct {
	sync.Mutex // protects the others
	last       uintptr
	notify     map[uintptr]func(lost bool)
}{notify: map[uintptr]func(lost bool){}}

// onNotification is the callback of all registrations: Go cannot free callbacks.
//
//	void HCN_NOTIFICATION_CALLBACK(DWORD NotificationType, void* Context, HRESULT NotificationStatus, PCWSTR NotificationData)
var onNotification = sync.OnceValue(func() uintptr {
	return windows.NewCallback(func(kind, context, _, _ uintptr) uintptr {
		switch uint32(kind) {
		case notifyNetworkCreated, notifyNetworkDeleted, notifyServiceDisconnect:
			watchers.Lock()
			notify := watchers.notify[context]
			watchers.Unlock()
			if notify != nil {
				notify(uint32(kind) == notifyServiceDisconnect)
			}
		}
		return 0
	})
})

// Watch implements Host.
//
//	HRESULT HcnRegisterServiceCallback(HCN_NOTIFICATION_CALLBACK Callback, void* Context, HCN_CALLBACK* CallbackHandle)
//	HRESULT HcnUnregisterServiceCallback(HCN_CALLBACK CallbackHandle)
func (machine) Watch(notify func(lost bool)) (stop func(), err error) {
	if procRegisterServiceCallback.Find() != nil || procUnregisterServiceCallback.Find() != nil {
		return nil, &Error{Call: procRegisterServiceCallback.Name, Code: CodeNotImplemented}
	}
	watchers.Lock()
	watchers.last++
	context := watchers.last
	watchers.notify[context] = notify
	watchers.Unlock()
	forget := func() {
		watchers.Lock()
		defer watchers.Unlock()
		delete(watchers.notify, context)
	}
	var handle uintptr
	hr, _, _ := procRegisterServiceCallback.Call(onNotification(), context, uintptr(unsafe.Pointer(&handle)))
	if err := ParseError(procRegisterServiceCallback.Name, uint32(hr), ""); err != nil {
		forget()
		return nil, err
	}
	return func() {
		forget()
		_, _, _ = procUnregisterServiceCallback.Call(handle)
	}, nil
}
