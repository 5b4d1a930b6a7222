// SPDX-License-Identifier: GPL-2.0
/*
 * Limits on endpoints that share buffers.
 *
 * The remote decides how long it keeps a part of a buffer. The endpoint stays as
 * long, even after its file is closed, so RLIMIT_NOFILE does not bound the number
 * of such endpoints. This file bounds it, per user and for all users together.
 */
#include <linux/atomic.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/uidgid.h>
#include <linux/user_namespace.h>

#include "eptfd.h"
#include "share.h"

#define EPTFD_BUSY_OF_USER	512
#define EPTFD_BUSY_OF_ALL	8192

/**
 * struct eptfd_owner - a user with endpoints that share buffers
 * @node: in owners
 * @uid: the user
 * @refs: number of shares with this owner, under owners_lock
 * @busy: number of endpoints with parts that the remote holds
 */
struct eptfd_owner {
	struct hlist_node node;
	kuid_t uid;
	unsigned int refs;
	atomic_t busy;
};

static DEFINE_HASHTABLE(owners, 6);
static DEFINE_MUTEX(owners_lock);	/* owners */
static atomic_t busy_of_all;

static struct eptfd_owner *owner_find(kuid_t uid)
{
	struct eptfd_owner *owner;

	hash_for_each_possible(owners, owner, node, __kuid_val(uid))
		if (uid_eq(owner->uid, uid))
			return owner;

	return NULL;
}

static struct eptfd_owner *owner_create(kuid_t uid)
{
	struct eptfd_owner *owner;

	owner = kzalloc(sizeof(*owner), GFP_KERNEL_ACCOUNT);
	if (!owner)
		return ERR_PTR(-ENOMEM);

	owner->uid = uid;
	hash_add(owners, &owner->node, __kuid_val(uid));

	return owner;
}

/**
 * eptfd_owner_get() - get the user that a file's endpoint is charged to
 * @file: file of an endpoint
 *
 * Return: the user who opened it, for eptfd_owner_put(); NULL if that user had
 * CAP_SYS_RESOURCE and is not limited; -ENOMEM.
 */
struct eptfd_owner *eptfd_owner_get(const struct file *file)
{
	struct eptfd_owner *owner;
	kuid_t uid = file->f_cred->uid;

	if (file_ns_capable(file, &init_user_ns, CAP_SYS_RESOURCE))
		return NULL;

	mutex_lock(&owners_lock);
	owner = owner_find(uid) ?: owner_create(uid);
	if (!IS_ERR(owner))
		owner->refs++;
	mutex_unlock(&owners_lock);

	return owner;
}

/**
 * eptfd_owner_put() - undo eptfd_owner_get()
 * @owner: the owner, or NULL
 */
void eptfd_owner_put(struct eptfd_owner *owner)
{
	if (!owner)
		return;

	mutex_lock(&owners_lock);
	if (!--owner->refs) {
		hash_del(&owner->node);
		kfree(owner);
	}
	mutex_unlock(&owners_lock);
}

static bool take_one(atomic_t *count, int max)
{
	if (atomic_inc_return(count) <= max)
		return true;

	atomic_dec(count);

	return false;
}

/**
 * eptfd_owner_charge() - charge an endpoint before the remote gets a first part
 * @owner: its owner, or NULL
 *
 * Context: any.
 * Return: false if a limit is reached.
 */
bool eptfd_owner_charge(struct eptfd_owner *owner)
{
	if (!owner)
		return true;

	if (!take_one(&owner->busy, EPTFD_BUSY_OF_USER))
		return false;
	if (take_one(&busy_of_all, EPTFD_BUSY_OF_ALL))
		return true;

	atomic_dec(&owner->busy);

	return false;
}

/**
 * eptfd_owner_uncharge() - undo eptfd_owner_charge()
 * @owner: its owner, or NULL
 *
 * Context: any.
 */
void eptfd_owner_uncharge(struct eptfd_owner *owner)
{
	if (!owner)
		return;

	atomic_dec(&busy_of_all);
	atomic_dec(&owner->busy);
}
