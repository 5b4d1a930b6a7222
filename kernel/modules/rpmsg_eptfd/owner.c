// SPDX-License-Identifier: GPL-2.0
/*
 * Whose endpoints the remote has parts of buffers of, and how many.
 *
 * The remote alone decides how long it keeps a part, and its endpoint stays as
 * long as that, also when its file is closed: files in use do not bound these
 * endpoints. So each user can have so many, and all users together.
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
 * @refs: shares that have it as their owner, under owners_lock
 * @busy: endpoints of which the remote has parts
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
 * eptfd_owner_get() - whom what is sent through a file is counted for
 * @file: the file, of an endpoint
 *
 * Return: whoever has opened it, for eptfd_owner_put(); NULL if they had
 * CAP_SYS_RESOURCE and nothing is counted; -ENOMEM.
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
 * eptfd_owner_charge() - count an endpoint of which the remote gets a first part
 * @owner: whose it is, or NULL
 *
 * Context: any.
 * Return: false if there are as many as there can be.
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
 * @owner: whose it is, or NULL
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
